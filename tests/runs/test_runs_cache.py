"""The cache of stages: made once, damage seen, kept from a kill, one process at a time."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from dynaweb import events
from dynaweb.errors import CheckpointError, ConfigError, TrainingError
from dynaweb.runs import StageCache
from dynaweb.runs import cache as cache_module
from dynaweb.runs.cache import default_root
from dynaweb.runs.checksums import with_sum


def test_a_stage_is_made_once(tmp_path: Path) -> None:
    told: list[events.Stage] = []
    cache = StageCache(tmp_path, notify=told.append)  # type: ignore[arg-type]
    for _ in range(2):
        with cache.stage("sft", "k1", settings={"steps": 3}) as stage:
            if not stage.cached:
                (stage.scratch / "optimizer").write_text("only for a resume")
                (stage.folder / "weights").write_text("w")
                stage.commit(cost={"tokens": 5.0})
        assert (stage.folder / "weights").read_text() == "w"
        assert stage.cost["tokens"] == 5
    assert [event.status for event in told] == ["start", "done", "cached"]
    assert told[2].cost == told[1].cost
    assert told[1].folder == told[2].folder == tmp_path / "sft" / "k1" == cache.find("sft", "k1")
    assert sorted(path.name for path in stage.folder.iterdir()) == ["manifest.json", "weights"]
    manifest = json.loads((stage.folder / "manifest.json").read_text())
    assert manifest["settings"] == {"steps": 3}
    assert manifest["cost"]["seconds"] >= 0
    assert cache.find("sft", "k2") is None
    assert cache.find("rl", "k1") is None


@pytest.mark.parametrize("resumable", [True, False])
def test_what_a_failed_stage_left_is_kept_only_for_resumable_ones(resumable: bool, tmp_path: Path) -> None:
    told: list[events.Stage] = []
    cache = StageCache(tmp_path, notify=told.append)  # type: ignore[arg-type]
    with (
        pytest.raises(RuntimeError, match="power"),
        cache.stage("rl", "k", resumable=resumable) as stage,
    ):
        (stage.folder / "half").write_text("1")
        (stage.scratch / "step").write_text("7")
        raise RuntimeError("power")
    assert told[-1].status == "failed"
    assert "power" in told[-1].detail
    assert cache.find("rl", "k") is None
    with cache.stage("rl", "k", resumable=resumable) as stage:
        assert (stage.folder / "half").exists() is resumable
        assert (stage.scratch / "step").exists() is resumable
        stage.commit()


def test_a_stage_without_commit_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="ended without commit"), StageCache(tmp_path).stage("sft", "k"):
        pass


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest", "zeros", "one bit"])
def test_a_damaged_stage_is_made_anew(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = StageCache(tmp_path)
    with cache.stage("sft", "k") as stage:
        (stage.folder / "weights").write_text("weights")
        stage.commit()
    victim = stage.folder / ("manifest.json" if damage == "manifest" else "weights")
    if damage == "remove":
        victim.unlink()
    else:
        data, seen = victim.read_bytes(), victim.stat()
        harmed = {"zeros": bytes(len(data)), "one bit": bytes([data[0] ^ 1]) + data[1:]}.get(damage, data[:3])
        victim.unlink()
        victim.write_bytes(harmed)
        os.utime(victim, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    cache = StageCache(tmp_path)  # of another process; who made a stage does not look at it again
    assert cache.find("sft", "k") is None
    with cache.stage("sft", "k") as again:
        assert again.cached is False
        assert not (again.folder / "weights").exists()
        (again.folder / "weights").write_text("weights")
        again.commit()
    assert f"{tmp_path / 'sft' / 'k'} is damaged; it is made anew" in caplog.text
    assert cache.find("sft", "k") is not None


def test_a_damaged_stage_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StageCache(tmp_path).stage("sft", "k") as stage:
        (stage.folder / "weights").write_text("weights")
        stage.commit()
    (stage.folder / "weights").chmod(0o644)
    (stage.folder / "weights").write_bytes(bytes(7))

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dynaweb.runs.cache.shutil.rmtree", refused)
    told = f"{stage.folder} is damaged and cannot be removed .Permission denied.; delete it, or set DYNAWEB_CACHE"
    with pytest.raises(CheckpointError, match=told), StageCache(tmp_path).stage("sft", "k"):
        pass


def test_checksums_are_compared_once_by_each_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StageCache(tmp_path).stage("sft", "k") as stage:
        (stage.folder / "weights").write_text("weights")
        stage.commit()
    read: list[Path] = []
    file_sum = cache_module.file_sum
    monkeypatch.setattr(cache_module, "file_sum", lambda path: read.append(path) or file_sum(path))
    cache = StageCache(tmp_path)
    for _ in range(3):
        assert cache.find("sft", "k") == stage.folder
        with cache.stage("sft", "k") as again:
            assert again.cached
    assert read == [stage.folder / "weights"]


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


NO_STAGE_WRITES: list[dict[str, Any]] = [
    {"sha256": {}},
    {"sha256": {"weights": "0" * 64}},
    {"files": {"../other": 3}, "sha256": {"../other": "x"}},
    {"files": {"/etc/hostname": 3}, "sha256": {"/etc/hostname": "x"}},
    {"stage": "rl"},
    {"key": "k2"},
    {"key": 1},
    *({"cost": {"seconds": seconds}} for seconds in (math.nan, math.inf, -1.0, True, "1")),
    {"cost": []},
]
NOT_AS_WRITTEN: list[dict[str, Any]] = [
    {"files": {}, "sha256": {}},
    {"sha256": None},
    {"cost": {"seconds": 10**400}},
    {"settings": {"steps": 4}},
    {"settings": deep(900)},
    {"dynaweb": "0.1.0"},
    {"sum": None},
]


@pytest.mark.parametrize(
    ("change", "is_summed"),
    [*((one, False) for one in (*NO_STAGE_WRITES, *NOT_AS_WRITTEN)), *((one, True) for one in NO_STAGE_WRITES)],
)
def test_a_manifest_counts_only_as_it_was_written(change: dict[str, Any], is_summed: bool, tmp_path: Path) -> None:
    """Neither what damage makes of it, nor, with a sum that fits, what no stage can have written."""
    with StageCache(tmp_path).stage("sft", "k", settings={"steps": 3}) as stage:
        (stage.folder / "weights").write_text("w")
        stage.commit()
    (tmp_path / "sft" / "other").write_text("abc")
    path = stage.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.chmod(0o644)
    path.write_text(json.dumps(with_sum(manifest)))
    assert StageCache(tmp_path).find("sft", "k") is not None
    path.write_text(json.dumps(with_sum(manifest | change) if is_summed else manifest | change))
    assert StageCache(tmp_path).find("sft", "k") is None


def test_every_file_of_a_stage_is_summed_also_one_that_is_called_a_manifest(tmp_path: Path) -> None:
    with StageCache(tmp_path).stage("sft", "k") as stage:
        (stage.folder / "model").mkdir()
        (stage.folder / "model" / "manifest.json").write_text("{}")
        stage.commit()
    (stage.folder / "model" / "manifest.json").chmod(0o644)
    (stage.folder / "model" / "manifest.json").write_text("[]")
    assert StageCache(tmp_path).find("sft", "k") is None


def test_finished_files_are_read_only(tmp_path: Path) -> None:
    with StageCache(tmp_path).stage("sft", "k") as stage:
        (stage.folder / "model").mkdir()
        (stage.folder / "model" / "weights").write_text("w")
        stage.commit()
    for name in ("manifest.json", "model/weights"):
        assert (stage.folder / name).stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_interrupted_stage_has_not_failed(error: BaseException, tmp_path: Path) -> None:
    told: list[events.Stage] = []
    cache = StageCache(tmp_path, notify=told.append)  # type: ignore[arg-type]
    with pytest.raises(type(error)), cache.stage("rl", "k", resumable=True):
        raise error
    assert (told[-1].status, told[-1].detail) == ("interrupted", "what it has done is kept")


def test_a_damaged_state_names_the_folder_to_delete(tmp_path: Path) -> None:
    cache = StageCache(tmp_path)
    with pytest.raises(CheckpointError, match=r"^too short$"), cache.stage("rl", "k", resumable=True) as stage:
        (stage.scratch / "state").write_text("half")
        raise CheckpointError("too short")
    told = f"stage rl cannot go on .*: too short. .* delete {tmp_path}/rl/k.partial and give the same command again"
    with pytest.raises(CheckpointError, match=told), cache.stage("rl", "k", resumable=True) as stage:
        assert stage.resumed
        raise CheckpointError("too short")
    # Other errors are not blamed on it.
    with pytest.raises(RuntimeError, match=r"^power$"), cache.stage("rl", "k", resumable=True):
        raise RuntimeError("power")


STAGE = """
    import sys, time
    from pathlib import Path
    from dynaweb.runs import StageCache
    with StageCache(Path(sys.argv[1])).stage("sft", "k", resumable=True) as stage:
        if not stage.cached:
            with (stage.scratch / "log").open("a") as log:
                log.write("begun ")
            print("working", flush=True)
            time.sleep(float(sys.argv[2]))
            (stage.folder / "log").write_text((stage.scratch / "log").read_text())
            stage.commit()
        print("cached" if stage.cached else "made", flush=True)
"""


def start_stage(root: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(STAGE), str(root), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_process_leaves_no_lock_and_its_work(tmp_path: Path) -> None:
    first = start_stage(tmp_path, 60)
    assert first.stdout is not None
    assert first.stdout.readline() == "working\n"
    first.kill()
    first.communicate()
    second, _ = start_stage(tmp_path, 0).communicate(timeout=20)
    assert second.split() == ["working", "made"]
    assert (tmp_path / "sft" / "k" / "log").read_text() == "begun begun "


def test_two_processes_make_one_stage(tmp_path: Path) -> None:
    first = start_stage(tmp_path, 1.0)
    assert first.stdout is not None
    assert first.stdout.readline() == "working\n"
    second = start_stage(tmp_path, 1.0)
    assert first.communicate(timeout=20)[0] == "made\n"
    assert second.communicate(timeout=20)[0] == "cached\n"


WAIT = """
    import asyncio, sys
    from pathlib import Path
    from dynaweb.runs import StageCache
    async def wait():
        await asyncio.sleep(0)
        print("waiting", flush=True)
        with StageCache(Path(sys.argv[1])).stage("sft", "k"):
            print("never", flush=True)
    try:
        asyncio.run(wait())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_ends_the_wait_for_another_process(tmp_path: Path) -> None:
    first = start_stage(tmp_path, 60)
    assert first.stdout is not None
    assert first.stdout.readline() == "working\n"
    command = [sys.executable, "-c", textwrap.dedent(WAIT), str(tmp_path)]
    second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    assert second.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    second.send_signal(signal.SIGINT)
    try:
        assert second.communicate(timeout=5)[0] == "interrupted\n"
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_root() == Path(os.environ["DYNAWEB_CACHE"])
    monkeypatch.delenv("DYNAWEB_CACHE")
    assert default_root().parts[-2:] == ("dynaweb", "stages")
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"cannot be written.*DYNAWEB_CACHE"),
        StageCache(tmp_path / "file" / "x").stage("sft", "k"),
    ):
        pass
