"""Runs in an environment that has libwebarena: scores cases from stdin with WebArena's own evaluators.

What those import and never use here (language models, the browser environment) is replaced by empty modules. NLTK's
sentence model is data that pip does not bring, so words are split within a line only.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
import tempfile
import types
from pathlib import Path

for site in ("REDDIT", "SHOPPING", "SHOPPING_ADMIN", "GITLAB", "WIKIPEDIA", "MAP", "HOMEPAGE"):
    os.environ[site] = f"http://{site.lower()}.example"


def stub(name: str, **members: object) -> None:
    """An empty module in place of a real one."""
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


def package(name: str) -> None:
    """A package whose own code is not run."""
    spec = importlib.util.find_spec("webarena")
    root = Path(next(iter(spec.submodule_search_locations)))
    module = types.ModuleType(name)
    module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    sys.modules[name] = module


for name in ("webarena.browser_env", "webarena.llms", "webarena.llms.providers"):
    package(name)
stub("webarena.browser_env.actions", Action=dict)
stub("webarena.browser_env.utils", StateInfo=dict)
stub("webarena.llms.providers.openai_utils", generate_from_openai_chat_completion=None)

from webarena.evaluation_harness import evaluators, helper_functions  # noqa: E402

evaluators.word_tokenize = functools.partial(evaluators.word_tokenize, preserve_line=True)
evaluators.time.sleep = lambda seconds: None


class FakePage:
    """A page that shows what a case says."""

    def __init__(self, case: dict) -> None:
        self.case, self.url, self.context = case, case["url"], self

    def new_page(self) -> FakePage:
        return self

    def goto(self, url: str) -> None:
        """Already there."""

    def close(self) -> None:
        """Nothing to close."""

    def content(self) -> str:
        return self.case["page"]

    def evaluate(self, script: str) -> object:
        value = self.case["values"][script.removeprefix("() => ")]
        if value == "throws":
            raise ValueError(script)
        return value


def score(case: dict, folder: str) -> float | str:
    """WebArena's score, or the name of what it raised."""
    config = Path(folder) / "task.json"
    config.write_text(json.dumps({"intent": "x", "eval": case["eval"]}), encoding="utf-8")
    page = helper_functions.PseudoPage(FakePage(case), case["url"])
    try:
        comb = evaluators.evaluator_router(config)
        return comb([{}, {"answer": case["answer"]}], config, page, None)
    except Exception as error:
        return type(error).__name__


with tempfile.TemporaryDirectory() as folder:
    print(json.dumps([score(case, folder) for case in json.load(sys.stdin)]))
