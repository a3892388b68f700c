"""A small part of `scripts/fuzz_documents.py`: no document, however damaged, gives a traceback or another number."""

from __future__ import annotations

import random
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT

SCRIPT = ROOT / "scripts" / "fuzz_documents.py"
MUTATIONS = 12
"""Of each kind; the script does 5,000 in all."""


@pytest.fixture(scope="module")
def fuzzing() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.filterwarnings("ignore")
def test_damaged_documents_are_refused_or_read_as_they_were(fuzzing: dict[str, Any], tmp_path: Path) -> None:
    rng = random.Random(0)
    total = Counter[str]()
    for kind in fuzzing["kinds_in"](tmp_path):
        counts = fuzzing["fuzz"](kind, MUTATIONS, rng)
        assert not counts["crashed"], kind.name
        assert not (kind.is_exact and counts["changed"]), kind.name
        total += counts
    assert total["refused"] > MUTATIONS and total["changed"] and total["same"]


def test_the_fuzz_sees_numbers_that_change_and_code_that_breaks(fuzzing: dict[str, Any], tmp_path: Path) -> None:
    """Readers without any check are told apart from those with one."""
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, 2, 3], "b": {"c": 0.5}}')
    kind = fuzzing["Kind"]("unchecked", [path], lambda: path.read_bytes().decode() if path.exists() else "", True)
    counts = fuzzing["fuzz"](kind, 60, random.Random(1))
    assert counts["changed"] > 30 and counts["crashed"] and not counts["refused"]
    assert path.read_text() == '{"a": [1, 2, 3], "b": {"c": 0.5}}'
