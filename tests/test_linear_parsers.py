"""Every parser of model text, pages and files takes time in proportion to its text, whichever token that repeats.

`PARSERS` says which function is tried for which modules. A module that takes texts apart and is named by no parser, nor
in `ELSEWHERE` with a reason, fails the first test, so that a new parser cannot be forgotten.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dynaweb.errors import DynawebError
from dynaweb.types import Action, Node, Observation, Task
from dynaweb.web.actions.rules import Refused
from dynaweb.web.delta import DeltaError

ROOT = Path(__file__).parent.parent
SIZE = int(os.environ.get("DYNAWEB_TEXT_SIZE", "20000"))
"""Characters of a text. `scripts/nightly_engines.sh` asks for 100,000."""
QUICK = SIZE * 4e-6
"""Seconds of processor time below which a text of that size is not looked at again."""
LIBRARY = {("recipe", "a."), ("recipe", "a. "), ("recipe", "a.b.")}
"""Python's reader of TOML takes quadratic time for a key of thousands of parts; recipes are the user's own files."""
GROWTH = 3.0
"""What twice the text may take, in times of the text."""
PAGE = Observation(
    "http://x.localhost/",
    tuple(Node(number, "link" if number % 2 else "textbox", f"Name {number}") for number in range(1, 21)),
    title="Title",
)
TOKENS = (
    *(
        "\n",
        " ",
        "\t",
        "\r",
        "\\",
        "'",
        '"',
        "`",
        "```",
        "a",
        "1",
        ".",
        ",",
        ";",
        ":",
        "=",
        "-",
        "/",
        "%",
        "&",
        "*",
        "#",
    ),
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "<",
        ">",
        "\\'",
        '\\"',
        "''",
        "a'",
        "'a' ",
        "a'a",
        "= 'a'",
        " of 'a'",
        "a=b ",
        "a. ",
        "1,",
    ),
    *(
        "[1]",
        "[1] ",
        "= [1]\n",
        "= [1]-[20]\n",
        "=[3-9], 12 ",
        "~ [4]\n",
        "= [4]\n~ [4] a\n",
        "+ link 'a'\n",
        "+ 2 link 'a\n",
    ),
    *(
        "same\n",
        "title 'a'\n",
        "notice 'a'\n",
        "end\n",
        "link 'a' [1]\n",
        "link 'a'\n",
        "[1] link 'a'\n",
        "\t[1] link 'a' b: c\n",
    ),
    *(
        "ACTION:",
        "REASON:",
        "Action:\n",
        "Thought: ",
        "<think>",
        "</think>",
        "VERDICT: YES\n",
        "SUCCESS",
        "NOT SUCCESS ",
        "YES ",
    ),
    *(
        "REASONING: a\n",
        "CHANGE: a\n",
        "CHANGE:\n",
        "[YES]",
        "`a` ",
        "`\n",
        "```\n",
        "click('a",
        "click('1')\n",
        "click(\n",
    ),
    *(
        "do(action=",
        'do(action="Click", element="1")\n',
        "exit(",
        "fill('1', 'a",
        "[[",
        "[1, ",
        "Type [7]; [a",
        "Click [1]\n",
    ),
    *(
        "Tab 0: a | ",
        "<link>",
        "<a id='1'>",
        "&amp;",
        "<option>a</option>",
        "a|b",
        " |OR| ",
        "func:f('a')",
        "__A__",
        "a.b.",
    ),
    *(
        "http://",
        "http://a:b@",
        "$A",
        "\x1b[31m",
        "\x1b",
        "a = 1\n",
        "[a]\n",
        "a.a = 1\n",
        "{a=",
        "1st ",
        "3\n",
        "STEP ",
        "correct ",
    ),
)


def _page(text: str) -> Observation:
    return Observation("http://x/", (Node(1, "link", text), Node(2, "textbox", "a", value=text)), title=text)


def _delta(text: str) -> None:
    from dynaweb.web.delta.text import parse

    parse(text, PAGE)
    parse(text, PAGE, True)


def _change(text: str) -> None:
    from dynaweb.worldmodels.change import read_change

    read_change(text, PAGE)
    read_change("A sentence.\n" + text, PAGE)


def _full_page(text: str) -> None:
    from dynaweb.worldmodels.pages import read_page

    read_page(text, PAGE)
    read_page("x.localhost/\nlink 'a'\n" + text, PAGE)


def _words(text: str) -> None:
    from dynaweb_wm_delta.model import _read_words

    _read_words(text)


def _dialect(name: str) -> Callable[[str], None]:
    def read(text: str) -> None:
        from dynaweb.web.page.text import parse_page

        for begin in ("", "x.localhost/\n", "x.localhost/\nlink '", "Tab 0 (current): a\n\n", "<html>\n"):
            with contextlib.suppress(ValueError):
                parse_page(begin + text, name, "http://x/")

    return read


def _grammar(name: str) -> Callable[[str], None]:
    def read(text: str) -> None:
        from dynaweb.web.actions.grammar import parse_action

        begins = {
            "compact": ("", "click 'Name 1' [1]", "type 'Name 2' [2] '", "stop '"),
            "webarena": ("", "click [1]", "type [2] [", "stop [", "```click [1]```"),
            "browsergym": ("", "click('1', ", "fill('2', '", "send_msg_to_user('"),
            "webrl": ("", "do(action='Click', element='", "exit(message='", 'do(action="Type", argument="'),
            "webvoyager": ("", "Click [", "Click ", "Type [2]; ", "Type 2 ", "ANSWER; ", "Action: ", "Scroll [1]; ["),
        }
        for begin in begins[name]:
            parse_action(begin + text, PAGE, name)
            parse_action(begin + text + "!", PAGE, name)

    return read


def _reply(text: str) -> None:
    from dynaweb.policy.policy_prompt import _split_reply, numbered
    from dynaweb.web.actions.grammar import split_reply

    _split_reply(text)
    split_reply(text)
    numbered([Action("stop", text=text)])


def _prompt_file(text: str) -> None:
    from dynaweb.policy.prompt_file import PromptFile

    for form in ("{reason} ```{action}```", "{reason} So I do: {action}", "{action}"):
        PromptFile(reply=form).parts(text)


def _prompt_file_read(text: str, folder: Path) -> None:
    from dynaweb.policy.prompt_file import PromptFile

    (folder / "prompt.toml").write_text(f"user = '''\n{text}'''", encoding="utf-8", newline="")
    PromptFile.read(folder / "prompt.toml")


def _shortened(text: str) -> None:
    from dynaweb.policy.shortening import shortened
    from dynaweb.web.page.text import render

    for parts in (("Goal\n", render(_page(text)), "\nEnd"), (f"{text}\n", render(PAGE), f"\n{text}")):
        shortened(parts, _page(text), None, 5000, len)


def _compact_tokens(text: str) -> None:
    from dynaweb.policy.prompt_formats import _SPLIT

    list(_SPLIT.finditer(text))


def _recipe(text: str, folder: Path) -> None:
    from dynaweb.config.layers import read_toml

    (folder / "recipe.toml").write_text(text, encoding="utf-8", newline="")
    read_toml(folder / "recipe.toml")


def _set(text: str) -> None:
    from dynaweb.config.layers import parse_set

    parse_set([f"rl.updates={text}", text])


def _axis(text: str) -> None:
    from dynaweb.matrix.plan import parse_axis

    parse_axis(f"wm={text}")


def _json(text: str) -> None:
    from dynaweb.config.files import parse_json

    for form in (text, f"[{text}", f'{{"a": "{text}'):
        with contextlib.suppress(ValueError, TypeError):
            parse_json(form, dict)


def _evaluators(text: str) -> None:
    from dynaweb.web import evaluators

    for reference in ("1", "ab", "a", text, "a |OR| 1"):
        evaluators.includes(reference, text)
        evaluators.equals(reference, text)
    for note in ("", "EXACT"):
        with contextlib.suppress(evaluators._Ungraded):
            evaluators.url_match("http://x/a?b=c", f"http://x/{text}?{text}", note)
            evaluators.url_match(f"http://x/{text}?{text}", "http://x/a", note)


def _upstream(text: str) -> None:
    from dynaweb_env_webarena import functions, upstream

    for reference in ("a", text):
        upstream.exact_match(reference, text)
        upstream.must_include(reference, text, tokenize=True)
    with contextlib.suppress(ValueError):
        upstream.url_match("http://x/a?b=c", f"http://x/{text}?{text}")
    functions._CALL.match(f"func:f({text}")
    functions._arguments(text, "http://x/")


def _copies(text: str) -> None:
    from dynaweb.web.session import UrlMap
    from dynaweb_env_webarena.copies import Copy

    copy = Copy(2, {}, UrlMap({"http://a:2": "http://a:1", "http://b:2": "http://b:1"}))
    for begin in ("", "http://a:1", "http://a:2"):
        copy.real(begin + text)
        copy.canonical([begin + text, text.replace("a", "http://a:2")])


def _judges(text: str) -> None:
    from dynaweb_env_webarena.judge import _REASON, _VERDICT
    from dynaweb_rm_llm_judge.judge import middle_cut, verdict
    from dynaweb_rm_self_assess.judge import _WORDS, evident
    from dynaweb_rm_webvoyager_judge.judge import verdict as webvoyager

    for begin in ("", "VERDICT: YES", "VERDICT:"):
        verdict(begin + text)
        verdict(begin + text + "x")
    webvoyager(text)
    middle_cut(text, 500)
    for pattern in (_VERDICT, _REASON, _WORDS):
        pattern.findall(text)
    evident("a", _page(text))
    evident(text[:500], _page(text))  # an answer is part of a reply, whose tokens are few


def _curriculum(text: str) -> None:
    from dynaweb.stages.curriculum import _ANSWER, proposed

    proposed(text, ["a"])
    _ANSWER.findall(text)


def _labels(text: str) -> None:
    from dynaweb.data.labels import read_words

    read_words(text)
    read_words("REASONING: a\nCHANGE" + text)


def _masking(text: str) -> None:
    from dynaweb import masking

    masking.remember("a-secret-text")
    masking.masked(text)
    masking.masked_data({"a": [text]})
    masking.printable(text)
    with contextlib.suppress(DynawebError):
        masking.expanded("a", text)


def _server(text: str) -> None:
    from dynaweb.engines.server import _THOUGHT, without_login

    _THOUGHT.match(text)
    _THOUGHT.match("<think>" + text)
    without_login(f"http://{text}")


def _html(text: str) -> None:
    from dynaweb.report import markup

    markup.text(text)
    markup.with_minus(text)
    markup.embed({"a": text})


def _walls(text: str) -> None:
    from dynaweb_env_webvoyager.blocked import wall

    wall(_page(text))


def _static(text: str) -> None:
    from dynaweb.web.static.dom import load

    load("http://x/", f"<html><body><a href='/'>Go</a>{text}".encode())


def _fields(text: str) -> None:
    from dynaweb.web.static.addresses import resolve_url

    resolve_url("http://shop.test/a?b#c", text)
    re.sub(r"[\r\n]+", " ", text)


def _keys(text: str) -> None:
    from dynaweb.web.actions.keys import browser_keys

    browser_keys(text)
    browser_keys("ctrl+" + text)


def _goals(text: str) -> None:
    from dynaweb.rollout import agents
    from dynaweb.web.quoting import literal, quote, quoted, unquote
    from dynaweb_env_miniwob.plan import PlanError
    from dynaweb_env_miniwob.plan import ordinal as nth
    from dynaweb_env_miniwob.plan import quoted as in_quotes

    task = Task("t", text, "http://x/")
    agents._QUOTED.findall(task.intent)
    assert unquote(quote(text)) == text
    quoted(text)
    for read in (
        lambda: unquote("'" + text),
        lambda: literal("'" + text, 0),
        lambda: nth(text),
        lambda: in_quotes(text),
    ):
        with contextlib.suppress(ValueError, PlanError):
            read()


def _memory(text: str) -> None:
    from dynaweb.worldmodels.memory import features

    features(_page(text), Action("click", 1))


def _sites(text: str) -> None:
    from dynaweb_env_sites.content import folded, matches

    folded(text)
    matches("a b", text)
    matches(text[:2000], "a b")


def _importers(text: str) -> None:
    from dynaweb.data.importers import pages, steps

    for read in (pages.from_axtree_text, pages.from_webarena_text):
        with contextlib.suppress(ValueError):
            read(text, "http://x/")
    steps.thought_in_comments(text)
    steps.thought_before_fence(text)
    steps.thought_before_fence(f"{text}```a```")


Reader = Callable[..., None]
PARSERS: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "delta script": (_delta, ("dynaweb/web/delta/text.py", "dynaweb/web/delta/repair.py")),
    "change in words and script": (_change, ("dynaweb/worldmodels/change.py",)),
    "whole page": (_full_page, ("dynaweb/worldmodels/pages.py",)),
    "words of a world model": (
        _words,
        ("plugins/world_models/dynaweb_wm_delta/model.py", "plugins/world_models/dynaweb_wm_frozen_llm/model.py"),
    ),
    "page compact": (_dialect("compact"), ("dynaweb/web/page/text.py",)),
    "page webarena": (_dialect("webarena"), ("plugins/envs/dynaweb_env_webarena/formats.py",)),
    "page browsergym": (_dialect("browsergym"), ("plugins/envs/dynaweb_env_browsergym/formats.py",)),
    "page html": (_dialect("html"), ("plugins/envs/dynaweb_env_webarena/webrl.py",)),
    "action compact": (_grammar("compact"), ("dynaweb/web/actions/compact.py", "dynaweb/web/actions/grammar.py")),
    "action webarena": (_grammar("webarena"), ("plugins/envs/dynaweb_env_webarena/formats.py",)),
    "action browsergym": (_grammar("browsergym"), ("dynaweb/web/actions/calls.py", "dynaweb/web/actions/rules.py")),
    "action webrl": (_grammar("webrl"), ("plugins/envs/dynaweb_env_webarena/webrl.py",)),
    "action webvoyager": (_grammar("webvoyager"), ("plugins/envs/dynaweb_env_webvoyager/formats.py",)),
    "reply": (_reply, ("dynaweb/policy/policy_prompt.py",)),
    "reply by prompt file": (_prompt_file, ("dynaweb/policy/prompt_file.py",)),
    "prompt file": (_prompt_file_read, ("dynaweb/policy/prompt_file.py",)),
    "shortening": (_shortened, ("dynaweb/policy/shortening.py",)),
    "compact tokens": (_compact_tokens, ("dynaweb/policy/prompt_formats.py",)),
    "recipe": (_recipe, ("dynaweb/config/layers.py",)),
    "--set": (_set, ("dynaweb/config/layers.py",)),
    "--axis": (_axis, ("dynaweb/matrix/plan.py",)),
    "json": (_json, ("dynaweb/config/files.py",)),
    "evaluators": (_evaluators, ("dynaweb/web/evaluators.py",)),
    "upstream evaluators": (
        _upstream,
        ("plugins/envs/dynaweb_env_webarena/upstream.py", "plugins/envs/dynaweb_env_webarena/functions.py"),
    ),
    "addresses of copies": (_copies, ("plugins/envs/dynaweb_env_webarena/copies.py",)),
    "judges": (
        _judges,
        (
            "plugins/envs/dynaweb_env_webarena/judge.py",
            "plugins/rewards/dynaweb_rm_llm_judge/judge.py",
            "plugins/rewards/dynaweb_rm_self_assess/judge.py",
            "plugins/rewards/dynaweb_rm_webvoyager_judge/judge.py",
        ),
    ),
    "curriculum": (_curriculum, ("dynaweb/stages/curriculum.py",)),
    "labels": (_labels, ("dynaweb/data/labels.py",)),
    "masking": (_masking, ("dynaweb/masking.py",)),
    "server": (_server, ("dynaweb/engines/server.py",)),
    "report": (_html, ("dynaweb/report/markup.py", "dynaweb/report/viewer.py", "dynaweb/report/outcome.py")),
    "walls": (_walls, ("plugins/envs/dynaweb_env_webvoyager/blocked.py",)),
    "static pages": (_static, ("dynaweb/web/static/dom.py",)),
    "keys": (_keys, ("dynaweb/web/actions/keys.py",)),
    "fields": (_fields, ("dynaweb/web/static/addresses.py", "dynaweb/web/static/forms.py")),
    "goals": (
        _goals,
        ("dynaweb/rollout/agents.py", "dynaweb/web/quoting.py", "plugins/envs/dynaweb_env_miniwob/plan.py"),
    ),
    "memory": (_memory, ("dynaweb/worldmodels/memory.py",)),
    "site search": (_sites, ("plugins/envs/dynaweb_env_sites/content.py",)),
    "importers": (_importers, ("dynaweb/data/importers/pages.py", "dynaweb/data/importers/steps.py")),
}
"""What is tried, and the modules that it stands for."""
ELSEWHERE: dict[str, str] = {
    "dynaweb/data/images.py": "names of files, of 64 characters or none",
    "dynaweb/worldmodels/dynamics.py": "one set of characters of an address",
    "dynaweb/errors.py": "what a program of ours printed, each pattern once a line",
    "dynaweb/serve/site.py": "names of files, of 70 characters or none",
    "dynaweb/trainer/vision.py": "names of layers of a model",
    "dynaweb/compare/figures.py": "widths and fonts, which the user types",
    "dynaweb/compare/tables.py": "single characters and one-line labels, each read once",
    "dynaweb/matrix/raw.py": "one set of characters of a label",
    "dynaweb/matrix/reproduce.py": "pages of documentation of this repository",
    "dynaweb/report/html.py": "titles that the report itself has written",
    "dynaweb/scaffold/project.py": "the name of a new project",
    "plugins/observers/dynaweb_obs_mlflow/run.py": "one set of characters of a name",
    "dynaweb/compare/raw.py": "the name of a file of results",
    "dynaweb/commands/push.py": "names that the user types, and messages of one line",
    "dynaweb/estimate/machine.py": "names of machines, which the user types",
    "dynaweb/scaffold/recipe.py": "answers of the user, and task files of the user's own",
    "dynaweb/web/chromium/clickable.py": "single words of an attribute, each read once",
    "dynaweb/config/fitting.py": "names of models, which the user writes",
    "dynaweb/data/demonstrations.py": "`read_demonstrations` is given the name of a file",
    "dynaweb/data/importers/browsergym.py": "names of files",
    "dynaweb/data/importers/nnetnav.py": "tests/data/test_import_odd.py, with rows of the format",
    "dynaweb/data/importers/webarena.py": "tests/data/test_import_odd.py, with files of the format",
    "dynaweb/pipeline/models.py": "`read_tokenizer` is given the name of a model",
    "dynaweb/plugin/discovery.py": "names that packages declare",
    "dynaweb/policy/template.py": "a model's chat template",
    "dynaweb/runs/folder.py": "names of folders",
    "dynaweb/scaffold/writing.py": "the name of a new plugin",
    "dynaweb/trainer/models.py": "names of parameters",
    "dynaweb/web/chromium/downloads.py": "names of files, 255 characters long at most",
    "dynaweb/web/chromium/network.py": "patterns of hosts, and the first line of a proxy's answer",
    "dynaweb/web/session.py": "the scheme of an address: one anchored expression",
    "plugins/envs/dynaweb_env_miniwob/plans.py": "goals of MiniWoB's own pages",
    "plugins/envs/dynaweb_env_webarena/sites.py": "names of files and slots of the user's own task files",
}
"""Modules with expressions that no parser of other people's text uses, and why."""


def test_no_parser_is_forgotten() -> None:
    """A module that uses `re`, or has a function that reads a text, is tried here, or says why it is not."""
    reads = re.compile(
        r"^\s*def _?(?:parse|read|split|mend|scan|verdict)\w*\((?:self, )?(?:text|reply|line|source): str", re.M
    )
    files = [*ROOT.glob("dynaweb/**/*.py"), *ROOT.glob("plugins/**/*.py")]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    parsing = {name for name, source in sources.items() if "import re\n" in source or reads.search(source)}
    tried = {module for _, modules in PARSERS.values() for module in modules}
    assert tried <= sources.keys() and ELSEWHERE.keys() <= sources.keys(), "a module that is named here has moved"
    assert not tried & ELSEWHERE.keys()
    missing = sorted(parsing - tried - ELSEWHERE.keys())
    assert not missing, f"{missing}: add an entry to PARSERS, or to ELSEWHERE with the reason"


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_is_linear(name: str, tmp_path: Path) -> None:
    """A text of each token; where that takes long, half of it takes at least a third of the time."""
    parser = PARSERS[name][0]
    wrong = {}
    for token in TOKENS:
        if (name, token) in LIBRARY:
            continue
        if seconds(parser, token, SIZE, tmp_path) < QUICK:
            continue
        # A busy machine may stretch one of the two; a parser that is not linear is slow each time.
        for _ in range(4):
            half, whole = seconds(parser, token, SIZE // 2, tmp_path), seconds(parser, token, SIZE, tmp_path)
            if whole <= GROWTH * half:
                break
        else:
            wrong[token] = f"{half:.2f} s for {SIZE // 2:,} characters, {whole:.2f} s for {SIZE:,}"
    assert not wrong


def seconds(parser: Reader, token: str, size: int, folder: Path) -> float:
    """Processor time of a text; what the parser says of it does not matter, as long as it is one of our errors."""
    text = token * (size // len(token))
    begun = time.thread_time()
    with contextlib.suppress(DynawebError, DeltaError, Refused, ValueError):
        if "folder" in parser.__annotations__:
            parser(text, folder)
        else:
            parser(text)
    return time.thread_time() - begun


SHAPES: dict[str, Callable[[int], str]] = {
    "nested": lambda n: "<div>" * n + "x",
    "nested controls": lambda n: "<ul><li><a href=/><button><h1 role=status>x<div role=listbox>" * n,
    "fieldsets": lambda n: "<fieldset disabled>" * n + "<input>" * n,
    "labels of one control": lambda n: "<label for=a>x y</label>" * n + "<input id=a>",
    "a long label of many": lambda n: f"<p id=a>{'word ' * n}</p>" + "<input aria-labelledby=a>" * n,
    "a label of many parts": lambda n: f"<div id=a>{'<b>word</b> ' * n}</div>" + "<input aria-labelledby=a>" * n,
    "a label around those that it names": lambda n: f"<div id=a>{'<input type=checkbox aria-labelledby=a>' * n}</div>",
    "many names of one label": lambda n: f"<p id=a>w</p><input aria-labelledby='{'a ' * n}'>",
    "names that lead on": lambda n: "".join(
        f"<h1 id=h{at}><input type=button aria-labelledby='h{at + 1} h{at + 1}'></h1>" for at in range(n)
    ),
    "names in a circle": lambda n: "<h1 id=a>" + "<input type=button aria-labelledby=a>" * n,
    "labels and buttons": lambda n: (
        "".join(f"<label>l{at} <b>m{at}</b></label>" for at in range(n))
        + "".join(f"<button>b{at}</button>" for at in range(n))
    ),
    "labels that buttons say": lambda n: (
        "".join(f"<label>b{at}</label>" for at in range(n))
        + "".join(f"<button>x b{at}</button>" for at in reversed(range(n)))
    ),
    "a label around controls": lambda n: f"<label>{'text <select><option>a<option>b</select>' * n}</label>",
    "equal options": lambda n: f"<select>{'<option>a' * n}</select>",
    "options that are alike": lambda n: "<select>" + "".join(f"<option>{'o' * 119}{at % 9}" for at in range(n)),
    "options with numbers": lambda n: "<select>" + "".join(f"<option>o ({at // 2})" for at in range(n)),
    "groups": lambda n: f"<select>{'<optgroup label=x><option>a</optgroup>' * n}</select>",
    "lists": lambda n: "<select size=2><option>a<option>b</select>" * n,
    "cells": lambda n: "<table>" + "<tr><td>x" * n,
    "a long address": lambda n: f"<a href='{'a/../' * n}'>x</a>",
    "controls of a form": lambda n: "<form id=f></form>" + "<input form=f>" * n,
}
"""HTML whose parts refer to each other, for a number of them."""


@pytest.mark.parametrize("shape", SHAPES)
def test_a_page_of_any_shape_is_linear(shape: str, tmp_path: Path) -> None:
    def read(text: str) -> None:
        from dynaweb.data.importers.pages import from_html
        from dynaweb.web.page.view import compact_view, full_view, shorten_lists
        from dynaweb.web.static.dom import load

        page = SHAPES[shape](len(text))
        tree = load("http://x/", page.encode()).tree()
        compact_view(shorten_lists(tree, 10))
        full_view(tree)
        from_html(page, "http://x/")

    count = SIZE // 40
    if seconds(read, ".", count, tmp_path) < 0.2:
        return
    for _ in range(4):
        half, whole = seconds(read, ".", count, tmp_path), seconds(read, ".", 2 * count, tmp_path)
        if whole <= GROWTH * half:
            return
    raise AssertionError(f"{half:.2f} s for {count:,}, {whole:.2f} s for {2 * count:,}")


def test_a_pattern_of_a_page_cannot_take_for_ever() -> None:
    from dynaweb.web.static.forms import _is_quick

    for pattern in (r"(a+)+$", r"(a|aa)*b", r"([a-z]+){2,}", r".*.*.*.*=.*", r"(?:x+x+)+y", r"a{1,}a{1,}a{1,}a{1,}b"):
        assert not _is_quick(pattern, "a" * 50), pattern
    for pattern in (r"[0-9]{5}", r"[A-Za-z ]+", r"\d{3}-\d{4}", r"(\+\d+ )?\d+", r".+@.+", r"https?://.*"):
        assert _is_quick(pattern, "a" * 50), pattern
    assert not _is_quick(r"\s*a\s*b", "a" * 100_000) and _is_quick(r"[a-z]+", "a" * 100_000)


def test_what_is_not_linear_is_seen(tmp_path: Path) -> None:
    def quadratic(text: str) -> None:
        for end in range(0, len(text), 20):
            text[:end].count("a")

    # Four times what half of it takes; a busy machine may stretch one of the two, as above.
    assert any(
        seconds(quadratic, "a", 200_000, tmp_path) > GROWTH * seconds(quadratic, "a", 100_000, tmp_path)
        for _ in range(4)
    )
