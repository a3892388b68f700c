"""Data frames: documented columns, the numbers of the reports, in pandas and polars; damage is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compare_kit import outcomes, run
from raw_kit import raw_matrix
from report_fakes import episode

import dynaweb
from dynaweb.compare import compare
from dynaweb.compare.raw import write_results
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.matrix.frames import COLUMNS
from dynaweb.runs import JsonlWriter, write_json
from dynaweb.runs.checksums import SUM, seal


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for at, rate in enumerate((0.5, 0.8)):
        for seed in (0, 1):
            path = run(folder / f"{at}-{seed}", seed, outcomes(seed, rate, 20), lr=at)
            played = [replace(episode(number, "success"), id=f"e{number}") for number in range(20)]
            TrajectoryStore.write(path / "trajectories" / "eval-dynaweb.jsonl.gz", played)
            with JsonlWriter(path / "metrics.jsonl") as file:
                for update in (0, 1):
                    row = {"event": "update", "stage": "rl", "index": update, "metrics": {"reward": 0.25 * update}}
                    file.write(row)
    return folder


def columns(frame: Any) -> list[str]:
    return list(frame.columns)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames_have_the_documented_columns_and_the_reports_numbers(runs: Path, kind: Any) -> None:
    frames = dynaweb.results(runs, frame=kind)
    for name, documented in COLUMNS.items():
        frame = getattr(frames, name)
        wanted = [column for column in documented if column != "..."] + ["setting.rl.lr"]
        assert columns(frame)[: len(wanted)] == wanted, name
    assert columns(frames.updates)[-1] == "reward" and list(frames.updates["reward"]) == [0.0, 0.25] * 4
    assert list(frames.runs["run"]) == ["0-0", "0-1", "1-0", "1-1"]
    groups = compare([runs / name for name in frames.runs["run"]]).groups
    episodes = frames.episodes.to_dict("records") if kind == "pandas" else frames.episodes.to_dicts()
    for group in groups:
        ((_, value),) = group.labels
        played = [one for one in episodes if one["arm"] == "dynaweb" and one["setting.rl.lr"] == value]
        assert len(played) == group.success("dynaweb").n
    assert list(frames.runs["success"]) == [one.success("dynaweb").value for one in singles(runs)]
    steps = frames.steps
    assert len(steps) == 4 * 20 * 2 and set(steps["action"]) == {"click", "stop"}
    assert set(steps["target_role"]) >= {"link"} and list(steps["step"])[:2] == [1, 2]


def singles(runs: Path) -> list[Any]:
    from dynaweb.compare.groups import grouped
    from dynaweb.compare.records import read_run

    return [grouped([read_run(path)])[0] for path in sorted(runs.iterdir())]


def test_one_run_and_one_file_of_raw_results(runs: Path, tmp_path: Path) -> None:
    one = dynaweb.results(runs / "0-0")
    assert list(one.runs["run"]) == ["0-0"] and columns(one.runs) == list(COLUMNS["runs"])
    raw = raw_matrix({"opt": ["a", "b"]}, lambda values: 0.6, n=10)
    write_results(path := tmp_path / "made.jsonl.gz", raw)
    frames = dynaweb.results(path)
    assert len(frames.episodes) == 2 * 3 * 2 * 10 and set(frames.episodes["setting.opt"]) == {"a", "b"}
    assert frames.episodes.tokens.sum() == 20 * len(frames.episodes) and len(frames.updates) == 2 * 3 * 8
    with pytest.raises(ConfigError, match="have episodes but no steps"):
        _ = frames.steps


def test_a_damaged_run_is_refused(runs: Path) -> None:
    folder = runs / "1-0"
    write_json(folder / "status.json", {"status": "done", SUM: seal(folder)})
    assert len(dynaweb.results(runs).runs) == 4
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "rollout"}\n')
    with pytest.raises(CheckpointError, match=r"1-0 is damaged \(metrics.jsonl has changed"):
        dynaweb.results(runs)


def test_what_holds_no_run_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="holds no run"):
            dynaweb.results(path)
    with pytest.raises(ConfigError, match="pandas or polars"):
        dynaweb.results(tmp_path, frame="excel")  # type: ignore[arg-type]


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules['polars'] = None; import dynaweb; dynaweb.results({str(tmp_path)!r}, frame='polars')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingError: data frames of polars need it; install it with: pip install 'dynaweb[polars]'" in done.stderr


def test_the_documentation_has_every_column() -> None:
    text = (Path(__file__).parents[2] / "docs" / "matrices.md").read_text(encoding="utf-8")
    for documented in COLUMNS.values():
        for column, meaning in documented.items():
            assert f"| {column if column == '...' else f'`{column}`'} | {meaning} |" in text
