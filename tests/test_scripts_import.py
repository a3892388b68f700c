"""Benchmarks and scripts are run by hand: what they take from the package must still be there."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "scripts").glob("*.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_imports_of_the_package_is_there(path: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dynaweb":
            try:
                module = import_module(str(node.module))
            except ModuleNotFoundError as error:
                if str(error.name).startswith("dynaweb"):
                    raise
                pytest.skip(f"{node.module} needs {error.name}")
            for name in node.names:
                try:
                    getattr(module, name.name)
                except AttributeError:
                    try:
                        import_module(f"{node.module}.{name.name}")
                    except ImportError:
                        missing.append(f"{node.module}.{name.name}")
    assert not missing
