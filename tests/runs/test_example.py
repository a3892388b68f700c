"""The finished run that comes with the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import MissingError
from dynaweb.observers import read_metrics
from dynaweb.report.gather import gather
from dynaweb.report.table import headline
from dynaweb.runs import example
from dynaweb.runs.checksums import check_records
from dynaweb.runs.example import ARCHIVE, example_run, run_or_example


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))


def test_it_is_small_whole_and_says_what_was_gained() -> None:
    assert ARCHIVE.stat().st_size < 6 * 2**20
    folder = example_run()
    check_records(folder)
    assert example_run() == folder  # unpacked once
    data = gather(folder)
    assert data.status == "done" and not data.alarms
    assert {arm.name for arm in data.arms} == {"sft", "sft-long", "filtered-bc", "dynaweb"}
    assert {arm.success.n for arm in data.arms} == {360}
    assert "DynaWeb succeeds on" in headline(data) and "played again in Chromium" in data.browser_sample
    dreams = list(TrajectoryStore(folder / "trajectories" / "dreams.jsonl.gz"))
    assert any(step.facts.imagined for dream in dreams for step in dream.steps)
    # Nothing of the machine that made it.
    for path in (*folder.rglob("*.json"), *folder.rglob("*.jsonl")):
        assert "/opt/" not in path.read_text() and "/root" not in path.read_text(), path
    (start,) = (row for row in read_metrics(folder / "metrics.jsonl") if row["event"] == "run_start")
    assert not Path(start["time.folder"]).is_absolute()


def test_the_word_stands_for_it_unless_a_folder_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_or_example(Path("example")) == example_run()
    assert run_or_example(Path("runs/example")) == Path("runs/example")
    (tmp_path / "example").mkdir()
    assert run_or_example(Path("example")) == Path("example")


def test_a_package_without_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "ARCHIVE", tmp_path / "none.tar.xz")
    with pytest.raises(MissingError, match="install dynaweb anew"):
        example_run()


def test_processes_that_unpack_it_at_once_do_not_meet(tmp_path: Path) -> None:
    code = "from dynaweb.runs.example import example_run; print(example_run())"
    environment = {**os.environ, "DYNAWEB_CACHE": str(tmp_path / "shared")}
    jobs = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(3)
    ]
    folders = {job.communicate()[0].strip() for job in jobs}
    assert len(folders) == 1 and all(job.returncode == 0 for job in jobs)
    (folder,) = folders
    check_records(Path(folder))
    assert not list(Path(folder).parent.glob("part-*"))
