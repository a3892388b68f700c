"""`metrics.jsonl`: one line an event. What a clock or a machine decides is under `time.*` keys, so that the rest of two
runs with the same seed is equal bit for bit.

Rows of a stage are also kept in the stage's own folder. A run that finds the stage in the cache copies them, and a
resumed run builds its file anew from them: both have the same lines as a run that did everything itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynaweb import events
from dynaweb.hookspecs import hookimpl
from dynaweb.runs.atomic import finite
from dynaweb.runs.jsonl import JsonlWriter, mend, read_jsonl

STAGE_FILE = "metrics.jsonl"


class MetricsFile:
    """Observer that writes `path`, a new file each time: a resumed run gets its earlier rows from its stages."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        self._run = JsonlWriter(path)
        self._stage: _StageRows | None = None

    @hookimpl
    def dynaweb_run_start(self, event: events.RunStart) -> None:
        """The first row."""
        row = {"event": "run_start", "time.resumed": event.resumed, "time.folder": str(event.folder)}
        self._write(row | _now())

    @hookimpl
    def dynaweb_run_end(self, event: events.RunEnd) -> None:
        """The last row; the file is closed."""
        self._write({"event": "run_end", "status": event.status, "time.seconds": event.seconds} | _now())
        self._run.close()

    @hookimpl
    def dynaweb_stage(self, event: events.Stage) -> None:
        """Begin or end the stage's own rows; a row with its cost when it ends."""
        if event.status == "start":
            self._begin(event.folder)
            return
        self._end()
        if event.status == "cached" and event.folder is not None:
            for row in read_jsonl(event.folder / STAGE_FILE):
                self._run.write(row)
        row = {"event": "stage", "name": event.name, "key": event.key, "time.status": event.status}
        self._write(row | split_times(event.cost))

    @hookimpl
    def dynaweb_rollout(self, event: events.Rollout) -> None:
        """One row an episode."""
        trajectory = event.trajectory
        verdict = trajectory.facts.verdict
        self._write(
            {
                "event": "rollout",
                "phase": event.phase,
                "index": event.update,
                "id": trajectory.id,
                "task": trajectory.task.id,
                "kind": trajectory.task.kind,
                "source": trajectory.source,
                "end": trajectory.end,
                "steps": len(trajectory.steps),
                "reward": trajectory.reward,
                "success": verdict.score if verdict is not None else None,
            }
        )

    @hookimpl
    def dynaweb_update(self, event: events.Update) -> None:
        """One row an optimizer step."""
        self._write({"event": "update", "stage": event.stage, "index": event.index} | split_times(event.metrics))

    @hookimpl
    def dynaweb_eval(self, event: events.Evaluation) -> None:
        """One row an evaluation."""
        row = {"event": "eval", "arm": event.arm, "split": event.split, "successes": list(event.successes)}
        self._write(row | split_times(event.metrics))

    @hookimpl
    def dynaweb_error(self, event: events.Failure) -> None:
        """One row a failure."""
        self._write({"event": "error", "where": event.where, "error": event.error, "fatal": event.fatal})

    def close(self) -> None:
        """Close all files; twice is allowed."""
        self._end()
        self._run.close()

    def _begin(self, folder: Path | None) -> None:
        self._end()
        if folder is not None:
            self._stage = _StageRows(folder / STAGE_FILE, self._run)

    def _end(self) -> None:
        if self._stage is not None:
            self._stage.close()
            self._stage = None

    def _write(self, row: Mapping[str, Any]) -> None:
        clean = {key: finite(value) for key, value in row.items()}
        if self._stage is not None:
            self._stage.write(clean)
        self._run.write(clean)


class _StageRows:
    """The rows of one stage. Those of a killed attempt are kept up to the update from which this attempt goes on."""

    def __init__(self, path: Path, run: JsonlWriter) -> None:
        mend(path)
        self._path, self._run = path, run
        self._earlier = list(read_jsonl(path))
        self._writer: JsonlWriter | None = None

    def write(self, row: Mapping[str, Any]) -> None:
        if self._writer is None:
            self._writer = self._begin(row)
        self._writer.write(row)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            return
        # Nothing new came: the killed attempt had written it all, and the stage may be in its final place by now.
        for row in self._earlier:
            self._run.write(row)

    def _begin(self, first: Mapping[str, Any]) -> JsonlWriter:
        self._path.unlink(missing_ok=True)
        writer = JsonlWriter(self._path)
        for row in before(self._earlier, first):
            writer.write(row)
            self._run.write(row)
        return writer


def before(rows: list[dict[str, Any]], first: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a killed attempt that stay when the next one begins with the row `first`.

    Those from the same event, stage and index (or a later index) on are written again. One stage may count several
    things from 0 (updates, then the fidelity), so an index alone would cut too early. Episodes without an update are
    told together when all are played, so that the first one cuts all of its phase; other rows without an index cut
    nothing.
    """
    event, stage, index = _key_of(first)
    if index < 0 and event != "rollout":
        return rows
    keys = enumerate(map(_key_of, rows))
    cut = next((at for at, key in keys if key[:2] == (event, stage) and key[2] >= index), len(rows))
    return rows[:cut]


def _key_of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """Event, stage (of a rollout: its phase) and index of a row; -1 when it has none."""
    index = row.get("index")
    return str(row["event"]), str(row.get("stage", row.get("phase", ""))), -1 if index is None else int(index)


def split_times(metrics: Mapping[str, float]) -> dict[str, Any]:
    """`{"metrics": {...}}` without what a clock or a machine decides, and that under `time.*` keys."""
    times = {name: value for name, value in metrics.items() if is_time(name)}
    steady = {name: finite(value) for name, value in metrics.items() if name not in times}
    return {"metrics": steady} | {f"time.{name.removeprefix('time.')}": value for name, value in times.items()}


def joined_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a row that `split_times` made."""
    times = {key.removeprefix("time."): value for key, value in row.items() if key.startswith("time.")}
    return {**row.get("metrics", {}), **times}


def is_time(name: str) -> bool:
    """Whether a clock or a machine decides a metric: seconds, rates per second, memory in MiB, or named `time.*`."""
    last = name.rsplit(".", 1)[-1].rsplit("/", 1)[-1]
    return name.startswith("time.") or last == "seconds" or last.endswith(("_seconds", "_per_second", "_mib", "_s"))


def read_metrics(path: Path, *, times: bool = True) -> list[dict[str, Any]]:
    """The rows of a metrics file; without `times`, only what a second run with the same seed repeats."""
    rows = list(read_jsonl(path))
    if times:
        return rows
    return [{key: value for key, value in row.items() if not key.startswith("time.")} for row in rows]


def _now() -> dict[str, str]:
    from datetime import UTC, datetime

    return {"time.at": datetime.now(UTC).isoformat(timespec="seconds")}
