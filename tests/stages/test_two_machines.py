"""A run that changes machines: a GPU without a browser trains, another machine with a browser plays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from core_kit import Cli
from own_kit import bring, shop

from dynaweb.web.chromium.install import ENVIRONMENT_VARIABLE


@pytest.fixture
def site() -> Iterator[str]:
    with shop() as address:
        yield address


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_machine_takes_the_stages_of_the_other(warm_cli: Cli, tmp_path: Path, site: str) -> None:
    bring(tmp_path, site)
    no_browser = {"PATH": str(tmp_path), "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path), ENVIRONMENT_VARIABLE: ""}
    here, away = tmp_path / "cache-gpu", tmp_path / "cache-browser"

    def on_gpu(*words: str) -> tuple[int, str, list[tuple[str, str, str]]]:
        if away.exists():
            shutil.rmtree(here)
            shutil.copytree(away, here)
        done = warm_cli(*words, DYNAWEB_CACHE=str(here), OMP_NUM_THREADS="1", **no_browser)
        return done.returncode, done.stderr, stages(tmp_path / words[-1])

    def in_browser(*words: str) -> tuple[int, str, list[tuple[str, str, str]]]:
        shutil.rmtree(away, ignore_errors=True)
        shutil.copytree(here, away)
        done = warm_cli(*words, DYNAWEB_CACHE=str(away), OMP_NUM_THREADS="1")
        return done.returncode, done.stderr, stages(tmp_path / words[-1])

    made = warm_cli(
        *("new", "recipe", "try", "--model", "model", "--tasks", "tasks.json", "--site", f"shop={site}", "--trial"),
        *("--demos", "traces:webarena", "--demos", "nnetnav.jsonl:nnetnav", "--gpus", "0"),
    )
    assert made.returncode == 0, made.stderr

    code, text, first = on_gpu("sft", "try.toml", "--out", "a")
    assert code == 0, text
    assert [(name, status) for name, _, status in first] == [("demos", "done"), ("sft", "done")]

    code, text, second = in_browser("collect", "try.toml", "--out", "b")
    assert code == 0, text
    assert second[:2] == [(name, key, "cached") for name, key, _ in first]
    assert [(name, status) for name, _, status in second[2:]] == [("explore", "done")]

    code, text, third = on_gpu("run", "try.toml", "--out", "c")
    assert code == 3 and "Traceback" not in text, text
    assert "no Chromium found" in text
    assert third[:3] == [(name, key, "cached") for name, key, _ in second]
    trained = [name for name, _, status in third[3:] if status == "done"]
    assert {"world-model", "rl", "longer-sft"} <= set(trained), third

    code, text, last = in_browser("run", "try.toml", "--out", "d")
    assert code == 0, text
    made_before = [(name, key, "cached") for name, key, status in third if status in ("done", "cached")]
    assert last[: len(made_before)] == made_before
    rest = {name for name, _, status in last[len(made_before) :] if status == "done"}
    assert "eval" in rest and not rest & set(trained)
    assert (tmp_path / "d" / "report.html").exists()


def stages(folder: Path) -> list[tuple[str, str, str]]:
    """Name, key and end of each stage of a run, in order."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        (row["name"], row["key"], row["time.status"])
        for row in rows
        if row["event"] == "stage" and row["time.status"] != "start"
    ]
