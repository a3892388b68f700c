"""Every block of code of the documentation is what it says: Python compiles and imports what is there, data parses."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
import tomllib
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import pytest
import yaml
from folders import ROOT

BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)(?P=fence) *$", re.M | re.S
)
ITEM = re.compile(r"(?m)^( *[-*]|\d+\.) .*(\n +\S.*)*")
"""An item of a list, whose further lines are indented too."""
SCRIPT = re.compile(r"(?:\./)?(?:scripts|benchmarks|examples|docs)/[\w./-]+\.(?:py|sh)")
KNOWN = {"bash", "json", "python", "text", "toml", "yaml"}
OTHERS = {"gymnasium", "openenv", "trl", "agentlab", "browsergym"}
"""Packages of others that pages name, and that need not be here."""
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


class Block(NamedTuple):
    """A block of code and where it is."""

    where: str
    language: str
    text: str


def _blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            line = text[: block.start()].count("\n") + 1
            where = f"{page.relative_to(ROOT)}:{line}"
            found.append(Block(where, block["language"], textwrap.dedent(block["text"])))
    return found


BLOCKS = _blocks()


def of(*languages: str) -> list[object]:
    return [pytest.param(block, id=block.where) for block in BLOCKS if block.language in languages]


def test_every_block_says_its_language() -> None:
    assert len(BLOCKS) > 100
    assert [(block.where, block.language) for block in BLOCKS if block.language not in KNOWN] == []


def test_no_block_is_indented_only() -> None:
    """A fence says what is in it, so that the site can colour it and this file can check it."""
    written = {"recipes.md", "cli.md", "hooks.md", "api.md"}
    for page in (page for page in PAGES if page.name not in written and page.name != "CHANGELOG.md"):
        text = ITEM.sub("", BLOCK.sub("", page.read_text(encoding="utf-8")))
        assert re.findall(r"(?:^|\n\n) {4}\S.*", text) == [], page


def parsed(source: str) -> ast.AST:
    """The tree of a snippet, which may be the inside of a coroutine: `await`, and a `return` at the end."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.parse(f"async def snippet():\n{textwrap.indent(source, '    ')}")


@pytest.mark.parametrize("block", of("python"))
def test_python_compiles_and_what_it_imports_is_there(block: Block) -> None:
    for node in ast.walk(parsed(block.text)):
        if isinstance(node, ast.Import):
            for name in node.names:
                _there(name.name, block)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if not _there(node.module, block):
                continue
            module = import_module(node.module)
            for name in node.names:
                # A submodule is no attribute before it is imported.
                assert hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}"), (block.where, name.name)


def _there(module: str, block: Block) -> bool:
    """Whether a module can be looked into here; those of a page's own package need not be."""
    top = module.split(".")[0]
    if top.startswith(("dynaweb_wm_my_", "dynaweb_rm_my_", "my_package")):
        return False
    if top in OTHERS:
        return False
    # dynaweb.serve.gym and .openenv need packages that may be absent.
    if module in ("dynaweb.serve.gym", "dynaweb.serve.openenv"):
        assert find_spec(module), (block.where, module)
        return False
    assert find_spec(module), (block.where, module)
    return True


@pytest.mark.parametrize("block", of("python"))
def test_calls_of_dynaweb_in_python_exist(block: Block) -> None:
    """`dynaweb.NAME(...)` is offered, with the arguments that are given by keyword."""
    import inspect

    import dynaweb

    for node in ast.walk(parsed(block.text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id != "dynaweb":
            continue
        call = getattr(dynaweb, node.func.attr)
        parameters = inspect.signature(call).parameters.values()
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            known = {one.name for one in parameters}
            assert {str(one.arg) for one in node.keywords if one.arg} <= known, (block.where, node.func.attr)


@pytest.mark.parametrize("block", of("toml", "json", "yaml"))
def test_data_parses(block: Block) -> None:
    load = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}[block.language]
    assert load(block.text), block.where


@pytest.mark.parametrize("block", of("bash"))
def test_commands_can_be_split_into_words(block: Block) -> None:
    """Quotes are closed, and a file of ours that is run is there."""
    if "<<" in block.text or "$(" in block.text:
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        files = [word for word in words if SCRIPT.fullmatch(word)]
        assert [file for file in files if not (ROOT / file).exists()] == [], block.where
