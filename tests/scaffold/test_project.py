"""`dynaweb init`: a project whose recipe and ablation are valid, and whose notebook runs as it stands."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from core_kit import Cli

from dynaweb.errors import ConfigError
from dynaweb.scaffold.project import new_project


def test_a_project_is_valid_from_the_beginning(cli: Cli, tmp_path: Path) -> None:
    done = cli("init", "my.agents-1", "--recipe", "smoke")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "my.agents-1"
    names = {"my.agents-1.toml", "ablation.toml", ".gitignore", "my.agents-1.ipynb"}
    assert {path.name for path in folder.iterdir()} == names and "next: cd my.agents-1 && dynaweb run" in done.stderr
    done = cli("run", str(folder / "my.agents-1.toml"), "--dry-run")
    assert done.returncode == 0 and "Recipe my.agents-1" in done.stdout, done.stderr
    assert "12 cells" in cli("matrix", "show", str(folder / "ablation.toml")).stdout
    notebook = json.loads((folder / "my.agents-1.ipynb").read_text())
    assert notebook["nbformat"] == 4 and len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code[0].startswith("!dynaweb run my.agents-1.toml --out runs/first")
    for text in code[1:]:
        ast.parse(text)


def test_the_notebooks_frames_have_what_it_looks_at(tmp_path: Path) -> None:
    from dynaweb.matrix.frames import COLUMNS

    new_project(tmp_path / "mine")
    text = (tmp_path / "mine" / "mine.ipynb").read_text()
    for frame, column in (("episodes", "phase"), ("episodes", "arm"), ("episodes", "success"), ("updates", "stage")):
        assert column in COLUMNS[frame] and column in text and f"frames.{frame}" in text


def test_nothing_is_overwritten_or_half_written(tmp_path: Path) -> None:
    (folder := tmp_path / "mine").mkdir()
    (folder / "ablation.toml").write_text("mine")
    (folder / "notes.txt").write_text("mine too")
    with pytest.raises(ConfigError, match=r"ablation\.toml is there already"):
        new_project(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["ablation.toml", "notes.txt"]
    assert (folder / "ablation.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "base", "why"),
    [
        ("a b", "smoke", "is no name of a project"),
        ("-x", "smoke", "is no name of a project"),
        ("smoke", "dynaweb", "is a shipped recipe"),
        ("mine", "smkoe", "did you mean 'smoke'"),
    ],
)
def test_what_is_no_project(name: str, base: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        new_project(tmp_path / name, base=base)
    assert not (tmp_path / name).exists()
