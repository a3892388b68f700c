"""The documentation says what the code does: generated pages are current, and README's commands and links are real."""

from __future__ import annotations

import re
import runpy
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT
from typer.testing import CliRunner

import dynaweb
from dynaweb.cli.app import tree as command_tree
from dynaweb.config.recipe import SECTIONS
from dynaweb.train import STAGES

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    pages: dict[str, str] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    return pages


@pytest.fixture(scope="module")
def tree() -> Any:
    import typer

    return typer.main.get_command(command_tree())


@pytest.mark.parametrize("name", ["recipes.md", "cli.md", "hooks.md", "api.md"])
def test_generated_pages_are_current(name: str, generated: dict[str, str]) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == generated[name], f"docs/{name} is not what the code says; run: python docs/generate.py"


def test_every_setting_and_command_is_there(generated: dict[str, str]) -> None:
    for name, section in SECTIONS.items():
        assert f"### `[{name}]`" in generated["recipes.md"]
        assert all(re.search(rf"\n\| `{field}[`.]", generated["recipes.md"]) for field in section.model_fields)
    for command in (
        "run",
        "sft",
        "collect",
        "eval",
        "wm fit",
        "orm fit",
        "judge audit",
        "setup",
        "doctor",
        "plugins list",
        "config show",
    ):
        assert f"\n## `dynaweb {command}`\n" in generated["cli.md"]


CALLS = {
    "run": "run",
    "sft": "sft",
    "collect": "collect",
    "eval": "evaluate",
    "compare": "compare_runs",
    "view": "report_server",
    "report": "write_report",
    "push": "push",
    "play": "open_environment",
    "setup": "setup",
    "doctor": "doctor",
    "matrix list": "list_matrices",
    "matrix show": "plan_matrix",
    "matrix run": "run_matrix",
    "matrix status": "matrix_table",
    "matrix table": "matrix_table",
    "matrix figure": "matrix_figures",
    "results write": "write_results",
    "results list": "list_results",
    "reproduce": "reproduce",
    "init": "new_project",
    "wm fit": "fit_world_model",
    "wm eval": "evaluate_world_model",
    "wm show": "show_prediction",
    "orm fit": "fit_judge",
    "judge audit": "audit_judges",
    "data import": "import_data",
    "data export": "export_data",
    "data stats": "data_stats",
    "data show": "data_record",
    "data contamination": "contamination",
    "data label": "label_data",
    "plugins list": "list_plugins",
    "plugins show": "list_plugins",
    "plugins check": "check_plugin",
    "new plugin": "new_plugin",
    "new recipe": "new_recipe",
    "config show": "resolve",
    "config schema": "recipe_schema",
    "config recipes": "list_recipes",
    "tasks list": "list_tasks",
    "tasks show": "list_tasks",
    "env serve": "open_environment",
    "env install": "install_environment",
    "web serve": "serve_browsers",
    "cache list": "list_cache",
    "cache prune": "prune_cache",
}
"""The call of `import dynaweb` behind each command."""


def test_every_command_is_a_documented_call(generated: dict[str, str], tree: Any) -> None:
    def leaves(command: Any, path: str = "") -> Iterator[str]:
        inner = {name: one for name, one in getattr(command, "commands", {}).items() if not one.hidden}
        yield from [path] if not inner else []
        for name, one in inner.items():
            yield from leaves(one, f"{path} {name}".strip())

    assert set(leaves(tree)) == set(CALLS)
    assert set(CALLS.values()) <= set(dynaweb.__all__) <= set(dir(dynaweb))
    for name in set(dynaweb.__all__) - {"__version__"}:
        call = getattr(dynaweb, name)
        assert f"\n### `dynaweb.{name}`\n" in generated["api.md"] and call.__doc__, name


def test_every_stage_is_in_the_list(tmp_path: Path) -> None:
    """Whatever name the code or the list gives to a stage stands in the table of concepts.md, and no other."""
    named = re.compile(r'\b(?:self\.)?ctx\.stage\(\s*(?:"([\w-]+)"|([A-Z_]+))')
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "dynaweb").rglob("*.py")]
    found = {
        name or constant.lower().replace("_", "-") for source in sources for name, constant in named.findall(source)
    }
    found |= {spec.name.replace("_", "-") for spec in STAGES}
    section = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").split("## Stages")[1].split("\n\n| label")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)) == found
    assert {"demos", "rl", "eval", "curriculum"} <= found


def test_every_hook_and_event_is_there(generated: dict[str, str]) -> None:
    from dynaweb import events
    from dynaweb.plugin.discovery import hook_names

    names = hook_names()
    assert len(names) >= 13
    assert all(f"\n### `{name}(" in generated["hooks.md"] for name in names)
    made = [name for name, one in vars(events).items() if getattr(one, "__module__", "") == "dynaweb.events"]
    assert all(f"\n### `{name}`\n" in generated["hooks.md"] for name in made)


BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>.*) -->\n)?(?:^```bash\n(?P<fenced>(?s:.*?))^```|(?P<indented>(?:^    .*\n)+))", re.M
)
"""A block of commands, in a fence or indented, and the comment before it, which says what it needs."""
STARTS = ("dynaweb ", "python ", "torchrun ", "deepspeed ", "srun ", "pytest")
LEFT_OUT = ("api.md", "cli.md", "plugins.md", "recipes.md", "hooks.md", "tiny-model.md", "write-a-judge.md")
"""Written from the code, or typed as it stands by `scripts/check_plugins.py`; how the shipped model was trained."""
RUN_WHOLE = "your-own.md"
"""The page that `test_your_own.py` goes through from its first command to its last."""


def _commands(page: Path) -> list[tuple[str, bool]]:
    """Each command of a page, continued lines as one, and whether a comment says that it needs something."""
    found = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        text = block["fenced"] or textwrap.dedent(block["indented"])
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith(STARTS):
                found.append((line, (block["mark"] or "").startswith("needs ")))
    return found


DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *(page for page in DOCS if page.name not in LEFT_OUT)]
MARKED = {
    f"{page.relative_to(ROOT).as_posix().removeprefix('docs/')}: {line}": (line, needs)
    for page in PAGES
    for line, needs in _commands(page)
}
COMMANDS = {name: line for name, (line, _) in MARKED.items() if line.startswith("dynaweb ")}
"""Every line of `dynaweb` in the documentation."""
QUICK = [
    name for name, line in COMMANDS.items() if re.match(r"dynaweb (matrix (list|show)|config|plugins list)\b", line)
]
"""Those that are run here."""
RUNS = [
    name
    for name, line in COMMANDS.items()
    if re.match(r"dynaweb run\b(?!.*--resume)", line) and not name.startswith(RUN_WHOLE)
]


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_of_the_documentation_exist_with_their_options(name: str, tree: Any) -> None:
    """The command is there and knows every option; whether it does what the page says is for its own tests."""
    words = shlex.split(COMMANDS[name], comments=True)[1:]
    command = tree
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), f"{words[:1]} is no command"
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word.split("=")[0] for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("name", QUICK)
def test_quick_commands_of_the_documentation_run(name: str) -> None:
    done = CliRunner().invoke(command_tree(), shlex.split(COMMANDS[name], comments=True)[1:])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) > 3


@pytest.mark.parametrize("name", RUNS)
def test_runs_of_the_documentation_can_be_composed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipe, plugins and settings are there and go together; only the run itself is left out.

    Packages that a page says to install may be missing here, and the reader's own file, and nothing else.
    """
    words = shlex.split(COMMANDS[name], comments=True)[1:]
    done = CliRunner().invoke(command_tree(), [*words, "--dry-run"])
    missing = "is not installed; run: pip install", "there is no file or folder mine.jsonl.gz"
    lacking = [line for line in done.stderr.splitlines() if any(words in line for words in missing)]
    assert done.exit_code == (3 if lacking else 0), done.output
    assert len(done.stderr.splitlines()) - len(lacking) <= (len(lacking) > 1)
    assert done.stdout.startswith("Recipe ")


def test_every_command_is_run_by_a_test_or_says_what_it_needs() -> None:
    """README's second list names what each command is for; its first two commands are what CI types."""
    assert len(MARKED) > 50 and len(QUICK) >= 5 and len(RUNS) > 10
    silent = [
        name
        for name, (_, needs) in MARKED.items()
        if not needs and name not in QUICK and not name.startswith(RUN_WHOLE)
    ]
    assert [name for name in silent if not name.startswith("README.md")] == []


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS):
        # The badge of CI leads to GitHub's own pages about the repository, wherever that is.
        for target in re.findall(r"\]\((?!https?:|\.\./\.\./actions/)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def headings(page: Path) -> set[str]:
    """The anchors that the documentation site gives a page's headings: words in small letters, joined by dashes."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#{1,6} +(.+?) *$", text, flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_links_to_a_heading_find_it() -> None:
    """A heading that gets other words breaks the links to it, which lead to the top of the page then."""
    found = 0
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            aim = page.parent / target if target else page
            if aim.suffix == ".md" and aim.parent.name != "reference":  # those headings come from docstrings
                found += 1
                assert anchor in headings(aim), f"{page.name} links to #{anchor}, which {aim.name} does not have"
    assert found > 50


def test_readme_has_the_commands_that_are_run_from_it() -> None:
    commands = dict(re.findall(r"<!-- command: (\w+) -->\n```bash\n([^`]+)\n```", README))
    assert set(commands) == {"run", "test"}
    assert all(" && .venv/bin/dynaweb setup && " in command for command in commands.values())
    assert "readme_command test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_extras_that_readme_names_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra for group in re.findall(r"'\.\[([\w,]+)\]'", README) for extra in group.split(",")}
    assert named
    assert named <= set(extras)


def test_every_promise_names_a_test_that_is_there() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`((?:tests|scripts)/[\w/]+\.py)(?:::(\w+))?`", row.split(" | ")[-1])
        assert named, row
        for file, test in named:
            assert (f"def {test}(" if test else "") in (ROOT / file).read_text(encoding="utf-8"), (file, test)
