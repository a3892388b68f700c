"""Plugins whose packages are damaged, whose offers cannot work, or who talk: each is told, and nothing else suffers."""

from __future__ import annotations

import json

import pytest
from core_kit import TOY_CLASS, Cli, PackageMaker, toy_source

from dynaweb.plugin import registry as plugins


@pytest.mark.parametrize(
    ("file", "text", "listed"),
    [
        ("entry_points.txt", "[dynaweb]\nbad line without equals\n", True),
        ("entry_points.txt", "[console_scripts]\nbad line without equals\n", False),
        ("METADATA", "garbage\n", False),
        ("METADATA", "", False),
    ],
)
def test_damaged_metadata_of_a_package_takes_nothing_else_down(
    file: str, text: str, listed: bool, package: PackageMaker, cli: Cli
) -> None:
    package("good", toy_source())
    package("bad-metadata", toy_source("toy-two"))
    (package.folder / "bad_metadata-1.2.dist-info" / file).write_text(text, encoding="utf-8")
    loaded = plugins.load(warn=False)
    assert {"delta", "toy"} <= set(loaded.names("wm"))
    broken = [one for one in loaded.statuses() if one.status == "broken" and one.package.startswith("bad")]
    assert bool(broken) == listed
    if listed:
        assert broken[0].cause.endswith("install it again")
    done = cli("plugins", "list", "--json", path=package.folder)
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr
    assert cli("run", "--dry-run", path=package.folder).returncode == 0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("class Config(BaseModel):\n    z: 'Undefined' = 1\n", "is no model that pydantic can build"),
        ("class Config(BaseModel):\n    pass\nsummary = None\n", "summary and extra of 'toy' must be text"),
    ],
)
def test_a_spec_that_would_fail_later_is_broken_at_once(wrong: str, why: str, package: PackageMaker, cli: Cli) -> None:
    summary = "summary" if "summary" in wrong else "'a toy'"
    code = (
        f"from pydantic import BaseModel\nfrom dynaweb.hookspecs import PluginSpec, hookimpl\n{wrong}\n"
        "@hookimpl\ndef dynaweb_rewards():\n"
        f"    return [PluginSpec('toy', 'toy_package:Toy', Config, {summary})]\nclass Toy: pass\n"
    )
    package("toy-package", code)
    for command in (("config", "schema"), ("plugins", "list", "--json"), ("doctor",)):
        done = cli(*command, path=package.folder)
        assert "Traceback" not in done.stderr and done.returncode in (0, 3), done.stderr
    done = cli("run", "--dry-run", "--reward", "toy", path=package.folder)
    assert done.returncode == 3 and why in done.stderr


def test_what_plugins_print_when_they_are_imported_is_no_result(package: PackageMaker, cli: Cli) -> None:
    code = toy_source().replace("@hookimpl", "print('at import')\n@hookimpl", 1)
    package("loud", code, modules={"toys": "print('in the module')\n" + TOY_CLASS})
    for command in (("plugins", "list", "--json"), ("config", "show", "--json"), ("plugins", "check", "toy", "--json")):
        done = cli(*command, path=package.folder)
        json.loads(done.stdout)
        assert "at import" in done.stderr
    assert "in the module" in done.stderr
