"""Completion in bash, zsh and fish: each shell is given its script, and every command and option is offered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ASK: Mapping[str, Callable[[str], Mapping[str, str]]] = {
    "bash": lambda words: {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)},
    "zsh": lambda words: {"_TYPER_COMPLETE_ARGS": words},
    "fish": lambda words: {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}
MAIN = "import sys; from dynaweb.cli import main; main()"


def offered(**environment: str) -> str:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", MAIN], env=env, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(
    ("shell", "words", "wanted"),
    [
        ("bash", "dynaweb rep", ("report", "reproduce")),
        ("bash", "dynaweb run --wm full", ("full-state",)),
        ("zsh", "dynaweb matrix show expert", ("expert-share",)),
        ("fish", "dynaweb run --time", ("--time-budget",)),
    ],
)
def test_commands_options_and_names_are_offered(shell: str, words: str, wanted: tuple[str, ...]) -> None:
    text = offered(_DYNAWEB_COMPLETE=f"complete_{shell}", **ASK[shell](words))
    assert all(word in text for word in wanted), text


def test_bash_completes_with_the_script_that_it_is_given(tmp_path: Path) -> None:
    script = subprocess.run(
        [sys.executable, "-c", "from dynaweb.cli import main; main(['--show-completion', 'bash'])"],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert "complete -o default -F" in script
    # The script asks the command by its name, as it stands on the PATH.
    (tmp_path / "dynaweb").write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{MAIN}' \"$@\"\n")
    (tmp_path / "dynaweb").chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    code = (
        f'{script}\nCOMP_WORDS=(dynaweb matrix ta); COMP_CWORD=2; _dynaweb_completion dynaweb; echo "${{COMPREPLY[@]}}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run([bash, "-c", code], env=env, capture_output=True, text=True, check=True).stdout == "table\n"
