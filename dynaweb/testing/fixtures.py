"""Pytest fixtures: `pytest_plugins = ["dynaweb.testing.fixtures"]` in `conftest.py`.

`dynaweb_plugins`  the installed plugins, freshly loaded, with nothing of the developer's shell; forgotten afterwards
`tiny_policy`      the shipped tiny model with its prompt layer and an engine
`fake_engine`      makes engines that answer with prepared texts
`scripted_site`    a site of three pages without a browser
`dynaweb_run`      a new run folder of the recipe `smoke`
`dynaweb_cli`      runs `dynaweb ...` in a process of its own
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dynaweb.plugin.registry import Plugins
    from dynaweb.runs import RunFolder
    from dynaweb.testing.stand_ins import FakeEngine, ScriptedSite

PASSED_ON = ("DYNAWEB_CHROMIUM",)
"""Variables of the shell that tests see: where the browser is changes no result."""


@dataclass(frozen=True)
class TinyPolicy:
    """The tiny model: weights (torch), tokenizer, prompt layer, and an engine on it."""

    model: Any
    tokenizer: Any
    format: Any
    engine: Any


@pytest.fixture
def dynaweb_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No variable of the shell reaches dynaweb, and its cache is a temporary folder, which is returned."""
    for name in [name for name in os.environ if name.startswith("DYNAWEB_") and name not in PASSED_ON]:
        monkeypatch.delenv(name)
    cache = tmp_path_factory.mktemp("dynaweb-cache")
    monkeypatch.setenv("DYNAWEB_CACHE", str(cache))
    return cache


@pytest.fixture
def dynaweb_plugins(dynaweb_environment: Path) -> Iterator[Plugins]:
    """The installed plugins, loaded for this test alone."""
    from dynaweb.plugin import registry as plugins

    before = plugins._current
    yield plugins.load(warn=False)
    plugins._current = before


@pytest.fixture(scope="session")
def tiny_policy() -> TinyPolicy:
    """The shipped tiny model on the CPU."""
    import torch

    from dynaweb.engines.local.engine import TransformersEngine
    from dynaweb.engines.scheduler import Lockstep
    from dynaweb.pipeline.models import read_tokenizer
    from dynaweb.testing.stand_ins import compact_format
    from dynaweb.trainer.models import load_model, resolve

    torch.set_num_threads(1)
    model = load_model("tiny", "float32", "cpu")
    prompts = compact_format()
    engine = TransformersEngine(model, Lockstep(), pad_id=prompts.pad_id)
    return TinyPolicy(model, read_tokenizer(resolve("tiny")), prompts, engine)


@pytest.fixture
def fake_engine() -> Callable[..., FakeEngine]:
    """`fake_engine("first answer", "second")` makes an engine; `yes=0.9` sets what it says to two choices."""
    from dynaweb.testing.stand_ins import FakeEngine, compact_format

    def make(*answers: str, **settings: Any) -> FakeEngine:
        return FakeEngine(compact_format(), answers or ("",), **settings)

    return make


@pytest.fixture
def scripted_site() -> ScriptedSite:
    """A site of three pages."""
    from dynaweb.testing.stand_ins import ScriptedSite

    return ScriptedSite()


@pytest.fixture
def dynaweb_run(dynaweb_plugins: Plugins, tmp_path: Path) -> RunFolder:
    """A new run folder."""
    from dynaweb.config import resolve
    from dynaweb.runs import open_run

    return open_run(resolve("smoke", plugins=dynaweb_plugins), out=tmp_path / "run")


@pytest.fixture
def dynaweb_cli(dynaweb_environment: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line in a temporary folder: `dynaweb_cli("plugins", "list", timeout=60)`."""

    def run(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dynaweb", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=timeout, check=False)

    return run
