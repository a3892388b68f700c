"""The tutorials as files, which `scripts/check_tutorials.py` runs, and the recipes of `docs/containers.md`."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from folders import ROOT

from dynaweb.cli.app import tree
from dynaweb.config import resolve

sys.path.insert(0, str(ROOT / "scripts"))
import check_tutorials

NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def code(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_each_subject_has_a_tutorial() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        *("1-first-run", "2-your-own", "3-world-model", "4-ablation", "5-report"),
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_clean_and_their_commands_exist(path: Path) -> None:
    assert check_tutorials.problems(path) == []
    every: Any = typer.main.get_command(tree())
    commands = 0
    for text in code(path):
        if not text.startswith(("%%", "!", "%")):
            # As Jupyter runs it: with `await` at the top.
            compile(text, path.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for line in re.findall(r"^!(?:.*&& )?(dynaweb .*)", text.replace("\\\n", " "), re.M):
            words = shlex.split(re.split(r" (?:[|<>]|2>|&&|\$\()", line)[0])[1:]
            command = every
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word.split("=")[0] for word in words if word.startswith("-")} <= known, line
            commands += 1
    assert commands >= 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda cells: cells[1].update(outputs=[{"output_type": "stream"}]), "it has outputs"),
        (lambda cells: cells[1].update(execution_count=3), "it has outputs"),
        (lambda cells: cells[1].update(id=cells[0]["id"]), "the same id"),
        (lambda cells: cells.pop(0), "does not begin with a title"),
    ],
)
def test_a_notebook_that_was_saved_after_a_run_is_named(change: Any, why: str, tmp_path: Path) -> None:
    title = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# Title"]}
    cell = {"cell_type": "code", "id": "b", "metadata": {}, "execution_count": None, "outputs": [], "source": ["1"]}
    cells = [title, cell]
    change(cells)
    (tmp_path / "x.ipynb").write_text(json.dumps({"cells": cells}))
    (problem,) = check_tutorials.problems(tmp_path / "x.ipynb")
    assert why in problem and problem.startswith("x.ipynb: ")


def test_recipes_of_the_page_on_containers_are_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:
        path = tmp_path / "mine.toml"
        path.write_text(block if block.startswith("extends") else f'extends = "dynaweb"\n{block}')
        assert "{copy}" in resolve(path).section("env")["reset_copy"]
