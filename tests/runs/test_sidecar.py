"""Environments for packages whose pins clash: made with uv or with pip, whole or not at all, and asked as processes."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from dynaweb.errors import InfrastructureError, MissingError
from dynaweb.runs import sidecar
from dynaweb.runs.sidecar import Sidecar

META = "Metadata-Version: 2.1\nName: toy-side\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that exists nowhere else, and an environment that wants it."""
    path = tmp_path / "toy_side-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy_side.py", "ANSWER = 42\n")
        for name, text in (("METADATA", META), ("WHEEL", WHEEL), ("RECORD", "")):
            archive.writestr(f"toy_side-1.0.dist-info/{name}", text)
    monkeypatch.setattr(sidecar, "SIDECARS", {"toy": Sidecar("toy", (str(path),))})
    return path


def program(folder: Path, code: int) -> str:
    """A program that does nothing and ends with a code."""
    path = folder / f"uv-{code}"
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("uv", ["real", "failing", "none"])
def test_an_environment_is_made_with_what_there_is(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uv: str
) -> None:
    if uv == "real" and sidecar._uv() is None:
        pytest.skip("needs uv")
    if uv != "real":
        found = program(tmp_path, 1) if uv == "failing" else None
        monkeypatch.setattr(sidecar, "_uv", lambda: found)
    python = sidecar.install("toy")
    assert python == sidecar.python_of("toy") and python != Path(sys.executable)
    script = tmp_path / "ask.py"
    script.write_text("import json, sys, toy_side\nprint(json.dumps([json.load(sys.stdin), toy_side.ANSWER]))")
    assert sidecar.ask(python, script, "x", timeout=30) == ["x", 42]
    # It is there, so nothing is installed again.
    wheel.unlink()
    assert sidecar.install("toy") == python


def test_what_cannot_be_installed_leaves_nothing(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel.write_bytes(b"no package")
    with pytest.raises(InfrastructureError, match=r"installing toy failed: .*toy_side"):
        sidecar.install("toy")
    with pytest.raises(MissingError, match="run: dynaweb env install toy"):
        sidecar.python_of("toy")


def test_uv_is_found_beside_python_or_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: "/elsewhere/uv")
    assert sidecar._uv() == "/elsewhere/uv"
    (tmp_path / "uv").touch()
    assert sidecar._uv() == str(tmp_path / "uv")
