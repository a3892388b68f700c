"""The documentation says what the code does: generated pages are current, and README's commands and links are real."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from dynaweb.config.recipe import SECTIONS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    pages: dict[str, str] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    return pages


@pytest.mark.parametrize("name", ["recipes.md", "cli.md"])
def test_generated_pages_are_current(name: str, generated: dict[str, str]) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == generated[name], f"docs/{name} is not what the code says; run: python docs/generate.py"


def test_every_setting_and_command_is_there(generated: dict[str, str]) -> None:
    for name, section in SECTIONS.items():
        assert f"### `[{name}]`" in generated["recipes.md"]
        assert all(re.search(rf"\n\| `{field}[`.]", generated["recipes.md"]) for field in section.model_fields)
    for command in ("run", "sft", "collect", "eval", "wm fit", "setup", "doctor", "plugins list", "config show"):
        assert f"\n## `dynaweb {command}`\n" in generated["cli.md"]


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


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
