"""Where the repository is, is said once; the version, the licence and the Pythons are the same wherever they stand."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from folders import ROOT

import dynaweb

SCRIPT = ROOT / "scripts" / "address.py"
ADDRESS, DOCS = "https://github.com/Some-One/dynaweb", "https://some-one.github.io/dynaweb/"


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


@pytest.fixture(scope="module")
def citation() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return loaded


def test_citation_and_project_agree(pyproject: dict[str, Any], citation: dict[str, Any]) -> None:
    assert citation["version"] == pyproject["version"] == dynaweb.__version__
    assert citation["license"] == pyproject["license"]
    assert {"cff-version", "message", "title", "authors", "abstract", "keywords", "type"} <= set(citation)
    assert citation.get("repository-code") == pyproject["urls"].get("Repository")
    assert citation.get("url") == pyproject["urls"].get("Documentation")
    (paper,) = citation["references"]
    assert paper["url"] == pyproject["urls"]["Paper"]
    assert paper["title"].startswith("DynaWeb") and all(one["family-names"] for one in paper["authors"])


def test_badges_say_what_the_project_says(pyproject: dict[str, Any]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    badges = dict(re.findall(r"\[!\[([^\]]+)\]\(([^)]+)\)\]", text.split("\n## ")[0]))
    assert {"Licence", "Python", "PyPI", "Documentation", "CI"} == set(badges)
    assert pyproject["license"].replace("-", "--") in badges["Licence"]
    pythons = [one.rpartition(" ")[2] for one in pyproject["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert badges["Python"].startswith("https://img.shields.io/badge/python-" + "%20%7C%20".join(pythons) + "-")
    workflow = re.search(r"actions/workflows/([\w.]+)/badge\.svg$", badges["CI"])
    assert workflow and (ROOT / ".github" / "workflows" / workflow[1]).exists()


def test_nobody_names_another_repository(pyproject: dict[str, Any]) -> None:
    """An address that ends in /dynaweb, anywhere, is that of [project.urls]; OWNER stands for it in examples."""
    own = pyproject["urls"].get("Repository", "")
    pages = [*ROOT.glob("*.md"), ROOT / "CITATION.cff", ROOT / "mkdocs.yml", *(ROOT / "docs").rglob("*.md")]
    named = {
        (path.name, url)
        for path in [*pages, *(ROOT / ".github").rglob("*.*")]
        for url in re.findall(r"https://[\w.]+/[\w-]+/dynaweb\b", path.read_text(encoding="utf-8"))
    }
    known = {own, "https://pypi.org/project/dynaweb", "https://github.com/OWNER/dynaweb"}
    assert {(name, url) for name, url in named if url not in known} == set()


def test_one_command_writes_the_address_everywhere(pyproject: dict[str, Any]) -> None:
    script = runpy.run_path(str(SCRIPT))
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    written = script["with_urls"](text, script["urls"](ADDRESS, DOCS))
    loaded = tomllib.loads(written)
    assert loaded["project"]["urls"]["Repository"] == ADDRESS and loaded["project"]["urls"]["Documentation"] == DOCS
    assert loaded["project"] | {"urls": 0} == pyproject | {"urls": 0}, "nothing else changes"
    assert {name: loaded[name] for name in loaded if name != "project"} == {
        name: value for name, value in tomllib.loads(text).items() if name != "project"
    }
    again = script["with_urls"](written, script["urls"](ADDRESS, DOCS))
    assert again == written
    citation = script["with_citation"]((ROOT / "CITATION.cff").read_text(encoding="utf-8"), ADDRESS, DOCS)
    twice = script["with_citation"](citation, ADDRESS, DOCS)
    assert twice == citation and yaml.safe_load(citation)["repository-code"] == ADDRESS


@pytest.mark.parametrize(
    "address", ["dynaweb", "http://github.com/a/b", "https://github.com/a", "https://git.example/a/b"]
)
def test_what_is_no_address_is_refused_and_nothing_is_written(address: str) -> None:
    before = (ROOT / "pyproject.toml").read_bytes()
    done = subprocess.run([sys.executable, str(SCRIPT), address], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and address.split("/")[2 if "://" in address else 0] in done.stderr
    assert (ROOT / "pyproject.toml").read_bytes() == before


def archive(folder: Path, *, version: str = "0.2.0", url: str = ADDRESS, lacking: str = "", extra: str = "") -> Path:
    """A folder with a wheel and a source archive, as small as the check allows."""
    script = runpy.run_path(str(ROOT / "scripts" / "check_release.py"))
    with zipfile.ZipFile(folder / f"dynaweb-{version}-py3-none-any.whl", "w") as wheel:
        for name in (*script["NEEDED"], extra):
            if name and name != lacking:
                wheel.writestr(name, "")
        wheel.writestr(
            f"dynaweb-{version}.dist-info/METADATA", f"Name: dynaweb\nProject-URL: Repository, {url}\n\nAbout\n"
        )
    with tarfile.open(folder / f"dynaweb-{version}.tar.gz", "w:gz") as source:
        for name in ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "constraints.txt", "tests/a", "docs/a"):
            if name != lacking:
                source.addfile(tarfile.TarInfo(f"dynaweb-{version}/{name}"))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"version": "0.3.0"}, "is not of the version 0.2.0 that the tag v0.2.0 names"),
        ({"lacking": "dynaweb/train.py"}, "lacks dynaweb/train.py"),
        ({"lacking": "LICENSE"}, "lacks LICENSE"),
        ({"extra": "tests/__init__.py"}, "top levels that are not ours: tests"),
        ({"url": "https://github.com/other/dynaweb"}, f"run: python scripts/address.py {ADDRESS}"),
    ],
)
def test_a_release_is_looked_at_before_it_is_public(changes: dict[str, str], words: str, tmp_path: Path) -> None:
    script = ROOT / "scripts" / "check_release.py"
    command = [sys.executable, str(script), str(archive(tmp_path, **changes)), "--tag", "v0.2.0", "--address", ADDRESS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == bool(words), done.stderr
    assert words in done.stderr and ("must not be published" in done.stdout) == bool(words)


def test_an_empty_folder_is_no_release(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "check_release.py"))
    assert "0 wheels" in next(script["trouble"](tmp_path, "v1", ADDRESS))
