"""The day of random episodes: its table is the one that the documentation shows."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from folders import ROOT


def test_the_table_of_the_documentation_is_in_the_form_that_the_script_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    day = import_module("day")
    monkeypatch.delitem(sys.modules, "day")
    facts = {
        "episodes": 500, "sessions": 4, "steps": 3899, "ends": {"played": 478, "lost": 22},
        "kills": {"renderer": 9, "browser": 7, "site": 11},
        "lost_by_reason": {"the browser is gone (Page.navigate: closed)": 20, "the browser is gone (reset: #)": 2},
        "lost_without_reason": [], "leak_checks": 499, "leaks": {},
    }  # fmt: skip
    table = day.markdown(facts)
    assert f"\n\n{table}\n" in (ROOT / "docs" / "web.md").read_text()
    worse = day.markdown({**facts, "leaks": {"cookies": 2, "keys": 1}, "lost_without_reason": ["a", "b"]})
    assert "| leaks | 3 |" in worse and "| episodes lost without a reason | 2 |" in worse
    empty = {"ends": {}, "kills": {}, "lost_by_reason": {}}
    assert "| their reasons | none |" in day.markdown({**facts, **empty})
