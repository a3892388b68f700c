"""Processes that dynaweb starts import what it imports, whatever lies here; those that tests start have it imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from warm_kit import exit_code

from dynaweb.runs.processes import own_command, python_options


def test_a_file_here_is_not_taken_for_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit(7)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = subprocess.run([sys.executable, *own_command("--version")], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "dynaweb" in done.stdout, done.stderr
    plain = subprocess.run([sys.executable, "-m", "dynaweb", "--version"], capture_output=True, text=True, check=False)
    assert plain.returncode == 7, "Python itself puts the working directory first"


@pytest.mark.parametrize("here", ["", "."])
def test_who_imports_from_here_goes_on_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str) -> None:
    """As `python -m dynaweb` in a checkout that is not installed."""
    monkeypatch.chdir(tmp_path)
    assert python_options() == ["-P"]
    monkeypatch.syspath_prepend(here or str(tmp_path))
    assert python_options() == []


def _imported(names: list[str]) -> None:
    sys.exit(sum(name not in sys.modules for name in names))


def test_processes_of_tests_are_forked_from_one_that_has_imported_everything() -> None:
    """Else each of them takes seconds more, and nothing says so."""
    assert (
        exit_code(_imported, ["warm_imports", "stage_kit", "torch", "transformers.models.llama", "nothing.at.all"]) == 1
    )
