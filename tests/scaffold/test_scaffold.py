"""`dynaweb new plugin`, `plugins show|check`: what is written is clean, and what is wrong is named.

That the packages install, pass their own tests and run is checked by `scripts/check_plugins.py`, which needs a wheel.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from core_kit import TOY_CLASS, Cli, PackageMaker, toy_source

from dynaweb.errors import ConfigError
from dynaweb.scaffold import KINDS, new_plugin


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mine", "two-words3"])
def test_a_new_package_is_complete_typed_and_clean(kind: str, name: str, tmp_path: Path) -> None:
    files = new_plugin(kind, name, tmp_path / "package")
    assert all(file.is_file() for file in files)
    project = tomllib.loads((tmp_path / "package" / "pyproject.toml").read_text())
    ((entry, module),) = project["project"]["entry-points"]["dynaweb"].items()
    assert entry == name and (tmp_path / "package" / module / "py.typed").exists()
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert ("$" not in text and text.endswith("\n")) or file.name == "py.typed"
        if file.suffix == ".py":
            ast.parse(text)
    for arguments in (["check"], ["format", "--check", "--diff"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", str(tmp_path / "package")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["", "Mine", "my_model", "1st", "a b", "../x", "-x", "x-", "class"])
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no name of a plugin"):
        new_plugin("reward", name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("reward", "my-judge", "MyJudge"),
        ("reward", "strict", "StrictJudge"),
        ("world-model", "my-world", "MyWorldModel"),
        ("world-model", "model", "ModelWorldModel"),
        ("optimizer", "my-opt", "MyOptimizer"),
        ("optimizer", "opt", "OptOptimizer"),
        ("env", "my-environment", "MyEnvironment"),
        ("env", "env-2", "Env2Environment"),
    ],
)
def test_class_names_do_not_stutter(kind: str, name: str, expected: str, tmp_path: Path) -> None:
    files = new_plugin(kind, name, tmp_path / "package")
    main = next(file for file in files if file.name == f"{KINDS[kind].file}.py")
    classes = [node.name for node in ast.parse(main.read_text()).body if isinstance(node, ast.ClassDef)]
    assert expected in classes


def test_recipes_short_words_for_kinds_are_understood(tmp_path: Path) -> None:
    for short, full in (("wm", "world-model"), ("opt", "optimizer")):
        names = [{file.name for file in new_plugin(kind, "mine", tmp_path / kind)} for kind in (short, full)]
        assert names[0] == names[1]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("reward", "self-assess"), ("world-model", "delta"), ("optimizer", "gspo"), ("env", "sites"), ("reward", "toy")],
)
def test_a_name_that_is_taken_is_refused(kind: str, name: str, package: PackageMaker, tmp_path: Path) -> None:
    """For that kind alone: a judge may be called like a world model."""
    package("toy-package", toy_source(hook="dynaweb_rewards"))
    owner = "toy-package 1.2" if name == "toy" else "dynaweb"
    with pytest.raises(ConfigError, match=f"{name!r} is there already, in package {owner}"):
        new_plugin(kind, name, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    other = "world-model" if kind == "reward" else "reward"
    assert new_plugin(other, name, tmp_path / "y")


def test_nothing_is_overwritten(cli: Cli, tmp_path: Path) -> None:
    done = cli("new", "plugin", "--kind", "reward", "mine", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["folder"] == "dynaweb-rm-mine"
    before = {file: (tmp_path / file).read_bytes() for file in made["files"]}
    done = cli("new", "plugin", "--kind", "reward", "mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert "dynaweb-rm-mine is there already and not empty; choose another folder with --out" in done.stderr
    assert {file: (tmp_path / file).read_bytes() for file in made["files"]} == before
    done = cli("new", "plugin", "--kind", "judge", "mine")
    assert done.returncode == 2
    assert (
        "no kind of plugin is called 'judge'; valid: engine, env, observer, optimizer, prompt, reward, world-model"
        in done.stderr
    )


NEWER = "from dynaweb.hookspecs import hookimpl\n@hookimpl\ndef dynaweb_world_simulators(): return []"


def test_every_way_to_be_unusable_is_shown_and_takes_nothing_down(cli: Cli, package: PackageMaker) -> None:
    package("breaks-on-import", "import no_such_module_anywhere", entry_points={"breaker": "breaks_on_import"})
    package("second-delta", toy_source("delta"), entry_points={"second": "second_delta"}, modules={"toys": TOY_CLASS})
    package("from-the-future", NEWER, entry_points={"future": "from_the_future"})
    requires = ['no-such-distribution; extra == "big"']
    package("needs-an-extra", toy_source("hungry", extra="big"), requires=requires)
    done = cli("plugins", "list", "--json", path=package.folder)
    assert done.returncode == 0
    rows = {(row["package"], row["name"]): row for row in json.loads(done.stdout)}
    wanted = {
        ("breaks-on-import", "breaker"): ("broken", "No module named 'no_such_module_anywhere'"),
        ("second-delta", "delta"): ("broken", "the name is offered by dynaweb"),
        ("dynaweb", "delta"): ("broken", "second-delta 1.2"),
        ("from-the-future", "future"): ("broken", "made for a newer one?"),
        ("needs-an-extra", "hungry"): ("missing", "run: pip install 'needs-an-extra[big]'"),
    }
    for key, (state, cause) in wanted.items():
        assert rows[key]["status"] == state and cause in rows[key]["cause"], key
    assert rows["dynaweb", "gspo"]["status"] == "ok"
    # Everything else works, and asking for one of them ends with exit code 3, the cause and the fix.
    assert cli("config", "show", "--wm", "full-state", path=package.folder).returncode == 0
    for name, cause in (
        ("breaker", "no_such_module_anywhere"),
        ("delta", "block one of them with `-p no:PACKAGE`, or uninstall it"),
        ("future", "made for a newer one?"),
        ("hungry", "pip install 'needs-an-extra[big]'"),
    ):
        done = cli("run", "smoke", "--wm", name, path=package.folder)
        assert done.returncode == 3 and cause in done.stderr and "Traceback" not in done.stderr, done.stderr
        done = cli("plugins", "check", name, path=package.folder)
        assert done.returncode == 3 and cause in done.stdout, done.stdout
    assert cli("run", "smoke", "--dry-run", "-p", "no:second-delta", path=package.folder).returncode == 0


def test_show_and_check(cli: Cli, package: PackageMaker) -> None:
    done = cli("plugins", "show", "wm/delta")
    assert "target        dynaweb_wm_delta.model:DeltaWorldModel" in done.stdout
    assert '\napply           "patch"\n' in done.stdout
    shown = json.loads(cli("plugins", "show", "gspo", "--json").stdout)
    assert (shown["kind"], shown["settings"]["clip_low"]["default"]) == ("opt", 3e-4)
    done = cli("plugins", "show", "gsbo")
    assert (done.returncode, done.stdout) == (3, "")
    assert "did you mean 'gspo'" in done.stderr
    package("toy-package", toy_source(target="toys:Toy"), modules={"toys": "raise ValueError('bad day')"})
    listed = cli("plugins", "list", path=package.folder)
    assert "broken" not in listed.stdout
    done = cli("plugins", "check", "toy", "--json", path=package.folder)
    assert done.returncode == 3
    assert "ValueError: bad day" in json.loads(done.stdout)[0]["cause"]
