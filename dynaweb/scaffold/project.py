"""`dynaweb init`: the folder of a project, with a recipe, an ablation, a notebook and what Git leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from dynaweb.config.layers import shipped_recipes
from dynaweb.errors import ConfigError, hint
from dynaweb.scaffold.writing import TEMPLATES

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def new_project(folder: Path, *, base: str = "dynaweb") -> list[Path]:
    """Write a project into `folder` and return its files; other files that are there stay.

    Raises `ConfigError` for a recipe that is not shipped, a folder whose name is no file name of a recipe, and where
    one of the files is there already: nothing is written then.
    """
    if base not in shipped_recipes():
        raise ConfigError(f"no recipe is called {base!r}; {hint(base, shipped_recipes())}")
    name = folder.resolve().name
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a project: use letters, digits, '-', '_' and '.', such as my-agents")
    if name in shipped_recipes():
        raise ConfigError(f"{name!r} is a shipped recipe; call the project otherwise, such as my-{name}")
    values = {"name": name, "base": base}
    templates = TEMPLATES / "project"
    texts = {
        f"{name}.toml": _text(templates / "recipe.toml.tmpl", values),
        "ablation.toml": _text(templates / "matrix.toml.tmpl", values),
        ".gitignore": _text(templates / "gitignore.tmpl", values),
        f"{name}.ipynb": json.dumps(_notebook(name), indent=1) + "\n",
    }
    there = [file for file in texts if (folder / file).exists()]
    if there:
        raise ConfigError(f"{folder / there[0]} is there already; choose another folder, or move it away")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in texts]


def _text(template: Path, values: dict[str, str]) -> str:
    return Template(template.read_text(encoding="utf-8")).substitute(values)


def _notebook(name: str) -> dict[str, Any]:
    """A notebook that runs the recipe and looks at what came out."""
    cells = [
        _markdown(
            f"# {name}",
            "",
            "Each cell runs as it stands, from the top. The run takes minutes with the tiny model on a laptop; when it",
            "was interrupted, the same cell goes on.",
        ),
        _code(f"!dynaweb run {name}.toml --out runs/first $(test -d runs/first && echo --resume)"),
        _markdown("## What came out", "", "Tables of runs, episodes, steps and updates, for pandas."),
        _code(
            "import dynaweb",
            "",
            'frames = dynaweb.results("runs/first")',
            "frames.runs",
        ),
        _code('frames.episodes.groupby(["phase", "arm"], dropna=False).success.agg(["mean", "size"])'),
        _code('frames.updates.query("stage == \'rl\'").plot(x="update", y="reward")'),
        _markdown("## The report", "", "Trajectories, learning curves and costs, in one file that needs no network."),
        _code("from IPython.display import IFrame", "", 'IFrame("runs/first/report.html", width="100%", height=700)'),
        _markdown("## An ablation", "", "Many runs, one table, figures for a paper (hours with the default recipe)."),
        _code("# !dynaweb matrix run ablation.toml --jobs 2", "# !dynaweb matrix figure ablation.toml --to png"),
    ]
    for at, cell in enumerate(cells):
        cell["id"] = f"cell-{at}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _markdown(*lines: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": _lines(lines)}


def _code(*lines: str) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": _lines(lines)}


def _lines(lines: Sequence[str]) -> list[str]:
    return "\n".join(lines).splitlines(keepends=True)
