"""The metrics file and the progress display, through the same hooks as everybody else's observers."""

from __future__ import annotations

import io
import json
import logging
from contextlib import closing
from pathlib import Path

import pytest

from dynaweb import events
from dynaweb.observers import MetricsFile, ProgressDisplay, read_metrics
from dynaweb.observers.metrics import before, is_time
from dynaweb.observers.progress import Meter, clock, evaluated, line, metrics_text
from dynaweb.plugin import registry as plugins
from dynaweb.runs import StageCache
from dynaweb.types import EpisodeFacts, Judgement, Observation, Task, Trajectory

Loaded = plugins.Plugins


@pytest.fixture
def loaded() -> Loaded:
    return plugins.load(warn=False)


def trajectory(index: int) -> Trajectory:
    task = Task(id=f"shop/buy:train:1:{index}", intent="Buy", start_url="http://shop.localhost/")
    page = Observation("http://shop.localhost/", ())
    facts = EpisodeFacts(Judgement(1.0))
    return Trajectory(f"t{index}", task, (), page, "real", "stop", reward=1.0, facts=facts)


def play(loaded: Loaded, path: Path, cache: StageCache, *, seconds: float, updates: range, fail: bool = False) -> None:
    """A run with one stage of some updates, in a metrics file."""
    metrics = MetricsFile(path)
    with loaded.observing(metrics):
        loaded.notify(events.RunStart(path.parent, {}))
        with cache.stage("rl", "key", resumable=True) as stage:
            if not stage.cached:
                for index in updates:
                    loaded.notify(events.Rollout("dream", trajectory(index), update=index))
                    values = {
                        "reward": index / 4,
                        "bad": float("nan"),
                        "tokens_per_second": seconds,
                        "seconds": seconds,
                    }
                    loaded.notify(events.Update("rl", index, values))
                if fail:
                    metrics.close()
                    raise KeyboardInterrupt
                stage.commit(cost={"seconds": seconds, "tokens_trained": 9.0, "peak_memory_mib": seconds})
        loaded.notify(events.Evaluation("main", "test", (1.0, None, 0.0), {"seconds": seconds, "steps": 2.5}))
        loaded.notify(events.Failure("episode 3", "timed out"))
        loaded.notify(events.RunEnd(path.parent, "done", seconds))


def test_equal_runs_have_equal_files_but_for_times(loaded: Loaded, tmp_path: Path) -> None:
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        play(
            loaded,
            tmp_path / f"{name}.jsonl",
            StageCache(tmp_path / name, notify=loaded.notify),
            seconds=seconds,
            updates=range(2),
        )
    first, second = (read_metrics(tmp_path / f"{name}.jsonl", times=False) for name in "ab")
    assert first == second
    assert read_metrics(tmp_path / "a.jsonl") != read_metrics(tmp_path / "b.jsonl")
    kinds = [row["event"] for row in first]
    assert kinds == ["run_start", "rollout", "update", "rollout", "update", "stage", "eval", "error", "run_end"]
    assert first[2] == {"event": "update", "stage": "rl", "index": 0, "metrics": {"reward": 0.0, "bad": None}}
    assert first[5] == {"event": "stage", "name": "rl", "key": "key", "metrics": {"tokens_trained": 9.0}}
    assert first[6]["successes"] == [1.0, None, 0.0]
    assert first[1]["success"] == 1.0
    for text in (tmp_path / "a.jsonl").read_text().splitlines():
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_cached_stage_brings_its_rows_along(loaded: Loaded, tmp_path: Path) -> None:
    cache = StageCache(tmp_path / "cache", notify=loaded.notify)
    for name in "ab":
        play(loaded, tmp_path / f"{name}.jsonl", cache, seconds=1.0, updates=range(3))
    made, cached = (read_metrics(tmp_path / f"{name}.jsonl") for name in "ab")
    assert [row.get("time.status") for row in made if row["event"] == "stage"] == ["done"]
    assert [row.get("time.status") for row in cached if row["event"] == "stage"] == ["cached"]
    assert read_metrics(tmp_path / "a.jsonl", times=False) == read_metrics(tmp_path / "b.jsonl", times=False)


def test_a_resumed_stage_has_the_rows_of_one_that_was_never_killed(loaded: Loaded, tmp_path: Path) -> None:
    cache = StageCache(tmp_path / "cache", notify=loaded.notify)
    with pytest.raises(KeyboardInterrupt):
        play(loaded, tmp_path / "metrics.jsonl", cache, seconds=1.0, updates=range(4), fail=True)
    # The checkpoint was of update 2: updates 2 and 3 are done again.
    play(loaded, tmp_path / "metrics.jsonl", cache, seconds=1.0, updates=range(2, 6))
    play(
        loaded,
        tmp_path / "whole.jsonl",
        StageCache(tmp_path / "other", notify=loaded.notify),
        seconds=1.0,
        updates=range(6),
    )
    resumed = read_metrics(tmp_path / "metrics.jsonl", times=False)
    assert resumed == read_metrics(tmp_path / "whole.jsonl", times=False)


def test_rows_before_an_update() -> None:
    rows = [
        *({"event": "update", "stage": "wm", "index": index} for index in range(3)),
        {"event": "rollout", "phase": "rl", "index": 0},
        {"event": "update", "stage": "rl", "index": 0},
        {"event": "eval", "arm": "rl"},
        {"event": "rollout", "phase": "rl", "index": 1},
        {"event": "update", "stage": "rl", "index": 1},
    ]
    assert before(rows, {"event": "update", "stage": "wm", "index": 1}) == rows[:1]
    assert before(rows, {"event": "rollout", "phase": "rl", "index": 1}) == rows[:6]
    assert before(rows, {"event": "rollout", "phase": "rl", "index": 0}) == rows[:3]
    # Episodes that are told all at once: a kill in the middle of the telling must not double them.
    told = [{"event": "rollout", "phase": phase, "index": -1, "id": k} for phase in ("demos", "eval") for k in range(2)]
    assert before([*rows, *told], {"event": "rollout", "phase": "eval", "index": -1}) == [*rows, *told[:2]]
    # A count of something else, a later index, and rows without one cut nothing.
    for first in ({"stage": "fidelity", "index": 0}, {"stage": "rl", "index": 2}, {"stage": "rl"}, {"index": None}):
        assert before(rows, {"event": "update", **first}) == rows


def test_a_stage_that_counts_two_things_keeps_the_first_when_it_resumes(loaded: Loaded, tmp_path: Path) -> None:
    cache = StageCache(tmp_path / "cache", notify=loaded.notify)

    def attempt(path: Path, updates: range, *, stop: bool) -> list[tuple[object, object]]:
        metrics = MetricsFile(path)
        with closing(metrics), loaded.observing(metrics), cache.stage("wm", "k", resumable=True) as stage:
            for index in updates:
                loaded.notify(events.Update("wm", index, {}))
            if stop:
                raise KeyboardInterrupt
            loaded.notify(events.Update("fidelity", 0, {}))
            stage.commit()
        return [(row["stage"], row["index"]) for row in read_metrics(path) if row["event"] == "update"]

    with pytest.raises(KeyboardInterrupt):
        attempt(tmp_path / "a.jsonl", range(3), stop=True)
    found = attempt(tmp_path / "a.jsonl", range(0), stop=False)
    assert found == [("wm", 0), ("wm", 1), ("wm", 2), ("fidelity", 0)]


def test_a_stage_with_nothing_new_keeps_its_rows_and_leaves_no_second_folder(loaded: Loaded, tmp_path: Path) -> None:
    cache = StageCache(tmp_path / "cache", notify=loaded.notify)
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(KeyboardInterrupt):
        play(loaded, path, cache, seconds=1.0, updates=range(2), fail=True)
    play(loaded, path, cache, seconds=1.0, updates=range(0))
    assert [row["index"] for row in read_metrics(path) if row["event"] == "update"] == [0, 1]
    assert not (cache.root / "rl" / "key.partial").exists()
    play(loaded, tmp_path / "cached.jsonl", cache, seconds=1.0, updates=range(0))
    assert read_metrics(tmp_path / "cached.jsonl", times=False) == read_metrics(path, times=False)


def test_what_counts_as_time() -> None:
    assert all(
        map(is_time, ["seconds", "time.at", "rollout_seconds", "tokens_per_second", "peak_memory_mib", "a/seconds"])
    )
    assert not any(map(is_time, ["loss", "steps", "tokens", "success", "browser_steps"]))


def show(display: ProgressDisplay, loaded: Loaded, *seen: object) -> None:
    with loaded.observing(display):
        for event in seen:
            loaded.notify(event)
    display.close()


COST = {"seconds": 1.5, "tokens_trained": 1200.0, "browser_steps": 0.0, "peak_memory_mib": 1024.0}
STORY = (
    events.RunStart(Path("runs/x"), {}),
    events.Progress(events.STAGES, 0, 2, "stages"),
    events.Stage("sft", "cached", "abcdef0123", cost=COST),
    events.Stage("rl", "start", "0123456789"),
    *(events.Progress("rl", done, 3, "updates", {"reward": 0.5}) for done in range(4)),
    events.Stage("rl", "done", "0123456789"),
    events.Evaluation("main", "test", (1.0, 0.0, None), label="DynaWeb"),
    events.Evaluation("judge of main", "test", (1.0, 0.75, None), label="DynaWeb"),
    events.Failure("episode 3", "timed out [bold]"),
    events.RunEnd(Path("runs/x"), "done", 61.0),
)


def test_plain_lines_off_a_terminal(loaded: Loaded) -> None:
    stream = io.StringIO()
    show(ProgressDisplay(stream), loaded, *STORY)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "run folder runs/x"
    assert lines[1] == "stage 1 of 2: sft cached [abcdef01] (1.5 s, 1,200 tokens trained, peak memory 1.00 GiB)"
    assert lines[2] == "stage 2 of 2: rl start [01234567]"
    assert "rl 3/3 updates, " in stream.getvalue()
    assert "evaluation of DynaWeb (test): success 50.0 %, n = 2" in lines
    # The mean score of a judge is no success.
    assert "judge on DynaWeb (test): mean score 0.875, n = 2" in lines
    assert "problem in episode 3: timed out [bold]" in lines
    assert lines[-1] == "run done after 1:01"
    # Four reports come faster than lines do: the first and the last are shown.
    assert sum(text.startswith("rl ") for text in lines) == 2
    assert "\x1b" not in stream.getvalue()


def test_stages_are_numbered_as_they_come_and_only_where_their_number_is_known(loaded: Loaded) -> None:
    def said(*seen: object) -> list[str]:
        stream = io.StringIO()
        show(ProgressDisplay(stream), loaded, *seen)
        return [line.split(" [")[0] for line in stream.getvalue().splitlines()]

    plan = events.Progress(events.STAGES, 0, 3, "stages")
    sft, rl, cut = events.Stage("sft", "cached"), events.Stage("rl", "start"), events.Stage("rl", "interrupted")
    last = events.Stage("eval", "start")
    assert said(sft, rl) == ["stage sft cached", "stage rl start"]
    told = said(plan, sft, rl, cut, rl, events.Stage("rl", "done"), last, last)
    assert told == [
        "stage 1 of 3: sft cached",
        "stage 2 of 3: rl start",
        "stage 2 of 3: rl interrupted",
        "stage 2 of 3: rl start",
        "stage 2 of 3: rl done",
        "stage 3 of 3: eval start",
        # One more than was foreseen.
        "stage eval start",
    ]


def test_what_is_no_number_is_not_printed_as_one() -> None:
    assert metrics_text({"reward": float("nan"), "loss": 0.12345}) == "reward=- loss=0.123"
    assert evaluated(events.Evaluation("a", "test", (None,))) == "evaluation of a (test): none graded, n = 0"
    assert evaluated(events.Evaluation("judge of a", "test", (None,))) == "judge on a (test): no score, n = 0"


def test_bars_on_a_terminal(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    show(ProgressDisplay(stream), loaded, *STORY)
    text = stream.getvalue()
    assert "3/3" in text
    assert "reward=0.5" in text
    assert "timed out [bold]" in text
    assert "\x1b[" in text


def test_rate_and_time_left() -> None:
    meter = Meter(start_done=10, start_time=100.0)
    assert meter.rate(20, 105.0) == 2.0
    assert meter.left(20, 50, 105.0) == 15.0
    assert meter.rate(10, 100.0) == 0.0
    assert meter.left(10, 50, 100.0) is None
    assert line(events.Progress("dreams", 20, 50), meter, 105.0) == "dreams 20/50 it, 2.0 it/s, 0:15 left"
    assert line(events.Progress("dreams", 20, 0), meter, 105.0) == "dreams 20 it, 2.0 it/s"
    assert [clock(59.6), clock(3723)] == ["1:00", "1:02:03"]


def test_an_observer_never_ends_a_run(loaded: Loaded, caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    display = ProgressDisplay(stream)
    stream.close()
    with caplog.at_level(logging.WARNING, "dynaweb"):
        show(display, loaded, *STORY)
    assert caplog.text.count("observer ProgressDisplay") == 1
