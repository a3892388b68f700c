"""What GitHub reads: templates and workflows parse, actions are pinned, and the commands of workflows exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from folders import ROOT

from dynaweb.cli.app import tree as command_tree

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FILES = sorted([*GITHUB.rglob("*.yml"), ROOT / "CITATION.cff"])
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SYSTEM = {"apt-get", "bash", "echo", "git", "python3", "test"}
"""Programs that the machines of GitHub have."""


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each step of each job."""
    for path in WORKFLOWS:
        for name, job in load(path)["jobs"].items():
            for step in job["steps"]:
                yield path.name, name, step


STEPS = list(steps())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_parses(path: Path) -> None:
    assert load(path)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_ends_in_time(path: Path) -> None:
    """What a job may do besides is said at the job."""
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True]  # YAML's `on`
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 120, name
        for needed in [job.get("needs", [])] if isinstance(job.get("needs", []), str) else job.get("needs", []):
            assert needed in workflow["jobs"]


def test_actions_are_pinned_to_a_version() -> None:
    used = [step["uses"] for _, _, step in STEPS if "uses" in step]
    assert len(used) > 5
    assert [one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+){0,2}", one)] == []


def commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\|", line):
            if part.strip():
                yield shlex.split(re.sub(r"\$\([^)]*\)", "x", part))


ON_PATH = {(file, job) for file, job, step in STEPS if "GITHUB_PATH" in step.get("run", "")}
"""Jobs that call the programs of `.venv` by their names."""
RUN = [((file, job), words) for file, job, step in STEPS if "run" in step for words in commands(step["run"])]


@pytest.mark.parametrize(("where", "words"), RUN, ids=[" ".join([*where, *words])[:90] for where, words in RUN])
def test_commands_of_workflows_exist(where: tuple[str, str], words: list[str]) -> None:
    """Programs of `.venv` are those of our extras, files are there, and `dynaweb` knows its options."""
    program, *arguments = words
    if program.startswith(".venv/bin/") or (where in ON_PATH and program not in SYSTEM):
        program = program.removeprefix(".venv/bin/")
        named = {"mike"} if where in ON_PATH else set()  # it finds mkdocs on the PATH alone
        assert program in {"dynaweb", "pip", "pytest", "python", "twine"} | named, where
    else:
        assert program in SYSTEM, (where, program)
    for word in arguments:
        if re.fullmatch(r"(scripts|\.ci)/[\w./-]+", word):
            assert (ROOT / word).exists(), (where, word)
    if program == "dynaweb":
        command: Any = typer.main.get_command(command_tree())
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("-")} <= known
    named = arguments if program == "pip" else []
    extras = {one for word in named for group in re.findall(r"\[([\w,]+)\]$", word) for one in group.split(",")}
    assert extras <= set(PYPROJECT["project"]["optional-dependencies"])


def test_a_release_is_published_without_a_token_and_after_it_was_tried() -> None:
    jobs = load(GITHUB / "workflows" / "release.yml")["jobs"]
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"]["name"] == "pypi"
    assert publish["needs"] == "try" and jobs["try"]["needs"] == "build"
    text = (GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "secrets." not in text and "password" not in text
    assert load(GITHUB / "workflows" / "release.yml")[True] == {"push": {"tags": ["v*"]}}


def test_only_one_run_at_a_time_publishes_the_documentation() -> None:
    """All versions are pushed to one branch. A group that names the ref would let a tag and main push at once."""
    workflow = load(GITHUB / "workflows" / "docs.yml")
    pushing = [job for job in workflow["jobs"].values() if any("--push" in s.get("run", "") for s in job["steps"])]
    assert len(pushing) == 1
    assert "${{" not in pushing[0]["concurrency"]["group"] and not pushing[0]["concurrency"]["cancel-in-progress"]


def test_text_from_outside_never_becomes_a_part_of_a_command() -> None:
    """`${{ github.ref_name }}` in a command would be run by the shell; as a variable it is a word."""
    assert [step["run"] for _, _, step in STEPS if "${{" in step.get("run", "")] == []


@pytest.mark.parametrize("path", sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_forms_have_what_github_asks_for(path: Path) -> None:
    form = load(path)
    if path.name == "config.yml":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert form["name"] and form["description"] and form["body"]
    named = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert named and len(named) == len(set(named))
    for field in form["body"]:
        assert field["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]


def test_pull_requests_name_commands_that_contributing_explains() -> None:
    template = (GITHUB / "pull_request_template.md").read_text(encoding="utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for command in ("ruff check", "mypy", "lint-imports", "docs/generate.py"):
        assert command in template and command in contributing
