"""What the wheel holds: everything that a user needs, under names that are ours, and nothing else."""

from __future__ import annotations

import configparser
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from folders import ROOT

PLUGIN_FOLDERS = sorted(
    folder
    for kind in ("world_models", "optimizers", "rewards", "envs", "observers")
    for folder in (ROOT / "plugins" / kind).iterdir()
    if folder.is_dir() and not folder.name.startswith((".", "__"))
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_every_top_level_is_ours(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.startswith("dynaweb")} == set()
    assert tops >= {"dynaweb", *(folder.name for folder in PLUGIN_FOLDERS)}


def test_plugin_folders_and_entry_points_agree(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(wheel.read(name).decode())
    own = "dynaweb.engines.plugin"
    assert sorted(parser["dynaweb"].values()) == sorted([own, *(folder.name for folder in PLUGIN_FOLDERS)])
    assert dict(parser["console_scripts"]) == {"dynaweb": "dynaweb.cli:main"}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = declared["tool"]["importlinter"]["contracts"][0]["forbidden_modules"]
    assert sorted(contracts) == sorted(folder.name for folder in PLUGIN_FOLDERS)


def test_every_file_of_the_packages_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    for package in (ROOT / "dynaweb", *PLUGIN_FOLDERS):
        files = [path for path in package.rglob("*") if path.is_file() and not _is_litter(path)]
        wanted = {path.relative_to(package.parent).as_posix() for path in files}
        assert wanted - held == set()


def test_what_is_no_python_is_there_too(wheel: zipfile.ZipFile) -> None:
    held = wheel.namelist()
    suffixes = {Path(name).suffix for name in held}
    assert {".html", ".css", ".toml", ".safetensors"} <= suffixes
    assert "dynaweb/recipes/dynaweb.toml" in held
    folders = ("dynaweb/report/static", "dynaweb/recipes", "dynaweb/assets/tiny", "dynaweb_env_sites/templates")
    assert [folder for folder in folders if not any(name.startswith(f"{folder}/") for name in held)] == []
    assert {f"{folder.name}/py.typed" for folder in (ROOT / "dynaweb", *PLUGIN_FOLDERS)} <= set(held)
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert not any(_is_litter(Path(name)) for name in held)


def test_the_wheel_is_small(wheel: zipfile.ZipFile) -> None:
    assets = [info for info in wheel.infolist() if info.filename.startswith("dynaweb/assets/")]
    assert 0 < sum(info.file_size for info in assets) <= 16 * 2**20
    assert sum(info.file_size for info in wheel.infolist()) - sum(info.file_size for info in assets) <= 4 * 2**20


def test_plugin_parents_are_no_packages() -> None:
    parents = [ROOT / "plugins", *{folder.parent for folder in PLUGIN_FOLDERS}]
    assert [path for path in parents if (path / "__init__.py").exists()] == []


def _is_litter(path: Path) -> bool:
    # Tools leave caches in hidden folders; paths are taken from the repository on.
    parts = path.relative_to(ROOT).parts if path.is_absolute() else path.parts
    return any(part == "__pycache__" or part.startswith(".") for part in parts) or path.suffix in (".pyc", ".pyo")
