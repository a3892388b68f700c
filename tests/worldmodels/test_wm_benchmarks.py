"""The scripts that measure world models, dreams and stores, as small as they go: they run, and count what they did."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from folders import ROOT

FOLDER = ROOT / "benchmarks"


def script(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> ModuleType:
    """A benchmark as a module, with its command line."""
    spec = spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    return module


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_store_is_written_read_and_picked_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script("store", monkeypatch, "--count", "300", "--picks", "2").main()
    found = {line["what"]: line for line in lines(capsys.readouterr().out)}
    assert found["write"]["records"] == found["read"]["records"] == 300
    assert {"a tenth written", "half written", "a tenth read", "half read", "pick", "size"} <= set(found)


def test_dreams_are_counted_at_every_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--steps", "2", "--group", "2", "--sizes", "1", "2", "--rounds", "1", "--threads", "1")
    script("dream", monkeypatch, *arguments).main()
    one, two, last = lines(capsys.readouterr().out)
    assert (one["dreams"], one["n"], two["dreams"], two["n"]) == (1, 2, 2, 2)
    assert last["faster"] == pytest.approx(two["steps_per_second"] / one["steps_per_second"], rel=0.2)


def test_world_models_are_compared_in_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--episodes", "12", "--updates", "1", "--batch", "2", "--horizon", "3", "--threads", "1")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured: benchmarks/world_models.py -->\nstale words\n<!-- end -->\nafter\n")
    more = ("--out", str(tmp_path), "--docs", str(page), "--set", "wm.max_new_tokens=16")
    module = script("world_models", monkeypatch, "--env", "sites", "not-installed", *small, *more)
    module.main()
    table = (tmp_path / "table.md").read_text()
    said = capsys.readouterr()
    assert said.out.strip() == table.strip() and "not-installed is left out" in said.err
    written = page.read_text()
    assert written.startswith("before\n") and written.endswith("<!-- end -->\nafter\n") and "stale" not in written
    assert "### sites" in written and "12 random walks and 6 expert episodes" in written
    assert [line for line in table.splitlines() if line[:1] == "|" and line not in written] == []
    assert all(f"| {label} | " in table.partition("Automatic horizon")[2] for label in module.ARMS)
    found = json.loads((tmp_path / "table.json").read_text())["sites"]
    arms = found["arms"]
    assert list(arms) == [*module.ARMS, *module.MEMORY]
    # All arms answer the same questions, of sites that none was fitted on.
    (n,) = {arm["one_step"]["all"]["exact"]["n"] for arm in arms.values()}
    assert 0 < n <= found["transitions"][1]
    stores = [module.TransitionStore(tmp_path / "sites" / f"{name}.jsonl.gz") for name in ("fit", "held-out")]
    fitted, away = ({module.site_of(one) for one in store} for store in stores)
    assert fitted and away and not fitted & away
    # Cut off after so few tokens, nothing can be read, and the table does not make a victory of it.
    assert "It says little: most answers cannot be read" in table
    truth = found["true_answers"]
    assert 0 < truth["delta"] < truth["page"] and 0 < truth["new"] < 1 and "elements of a next page are new" in table
