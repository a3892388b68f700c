"""Disks that really are full or read-only: a clear error, nothing half-written, and going on once there is room."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import engine_kit as kit
import pytest
import rank_kit
import torch

from dynaweb.data.chunks import ChunkFile
from dynaweb.errors import ConfigError, StorageError
from dynaweb.pipeline.artifacts import link
from dynaweb.plugin.registry import current
from dynaweb.runs import JsonlWriter, StageCache, read_jsonl, write_json
from dynaweb.runs.space import out_of_space, storage_error
from dynaweb.trainer import checkpoint
from dynaweb.trainer.models import load_model, save_model
from dynaweb_opt_gspo import GspoConfig
from dynaweb_opt_gspo.gspo import Gspo

KIB = 1024


class Disk:
    """A small file system in memory; `leave` fills it up but for so many bytes, `free` gives all back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def leave(self, room: int) -> None:
        """Only so much is free."""
        self.free()
        _ballast(self.path).write_bytes(b"\0" * max(0, shutil.disk_usage(self.path).free - room))

    def free(self) -> None:
        """Make room."""
        _ballast(self.path).unlink(missing_ok=True)

    def read_only(self, on: bool = True) -> None:
        """Nothing can be written, by root neither; or it can again."""
        _as_root(["mount", "-o", f"remount,{'ro' if on else 'rw'}", str(self.path)])

    def files(self) -> list[str]:
        """Everything that lies there."""
        return sorted(
            str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file() and p != _ballast(self.path)
        )


def _ballast(path: Path) -> Path:
    return path / "ballast"


def _mounted(place: Path, size: str) -> bool:
    """Whether a file system in memory could be put there: as root, or by sudo where that asks nothing."""
    return _as_root(["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", str(place)])


def _as_root(command: list[str]) -> bool:
    for words in ([], ["sudo", "-n"]):
        try:
            if subprocess.run([*words, *command], capture_output=True, check=False).returncode == 0:
                return True
        except OSError:
            continue
    return False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "disk"
    place.mkdir()
    if not _mounted(place, "8m"):
        pytest.skip("this user may not mount a small file system")
    try:
        yield Disk(place)
    finally:
        # At once from sight; it is gone when the last map of one of its files is.
        _as_root(["umount", "--lazy", str(place)])


def _noise(size: int) -> str:
    return os.urandom(size // 2).hex()


def test_a_store_keeps_its_whole_batches_and_takes_the_next_one(disk: Disk) -> None:
    path = disk.path / "store.jsonl.gz"
    store = ChunkFile(path)
    store.append([(["first"], 1)])
    size = path.stat().st_size
    disk.leave(64 * KIB)
    with pytest.raises(OSError, match="No space left") as failure:
        store.append([([_noise(512 * KIB)], 1), (["end"], 1)])
    assert failure.value.errno == errno.ENOSPC
    assert path.stat().st_size == size, "what could not be finished takes no room"
    store.append([(["small"], 1)])
    disk.free()
    big = _noise(512 * KIB)
    store.append([([big], 1)])
    for one in (store, ChunkFile(path)):
        assert [one.lines(i) for i in range(len(one.chunks))] == [["first"], ["small"], [big]]
        assert one.torn == 0


def test_a_new_store_that_finds_no_room_is_not_there(disk: Disk) -> None:
    path = disk.path / "new.jsonl.gz"
    disk.leave(64 * KIB)
    with pytest.raises(OSError, match="No space left"):
        ChunkFile(path).append([([_noise(512 * KIB)], 1)])
    assert disk.files() == []
    disk.free()
    ChunkFile(path).append([(["now"], 1)])
    assert ChunkFile(path).lines(0) == ["now"]


def test_a_row_of_metrics_is_there_wholly_or_not_at_all(disk: Disk) -> None:
    path = disk.path / "metrics.jsonl"
    writer = JsonlWriter(path)
    writer.write({"row": 0})
    disk.leave(8 * KIB)
    with pytest.raises(StorageError, match=r"the disk is full \(No space left on device.*MiB are free in"):
        writer.write({"row": 1, "long": _noise(64 * KIB)})
    writer.write({"row": 2})
    disk.free()
    writer.write({"row": 3, "long": "x" * 64 * KIB})
    writer.close()
    assert [row["row"] for row in read_jsonl(path)] == [0, 2, 3]


def test_metrics_that_cannot_be_written_end_the_run_and_other_observers_do_not(disk: Disk) -> None:
    from dynaweb.events import RunStart
    from dynaweb.hookspecs import hookimpl

    class Full:
        @hookimpl
        def dynaweb_run_start(self, event: RunStart) -> None:
            with JsonlWriter(disk.path / "rows.jsonl") as writer:
                writer.write({"long": _noise(64 * KIB)})

    event = RunStart(disk.path, {}, (), False)
    disk.leave(0)
    with current().observing(Full()), pytest.raises(StorageError):
        current().notify(event)


def test_a_checkpoint_that_finds_no_room_leaves_the_last_one(disk: Disk) -> None:
    trainer = rank_kit.trainer_of(Gspo(GspoConfig()))
    folder = disk.path / "checkpoint"
    rank_kit.train(trainer, Gspo(GspoConfig()), 1)
    trainer.save(folder)
    kept, before = disk.files(), checkpoint.load(folder)[0]
    rank_kit.train(trainer, Gspo(GspoConfig()), 1)
    size = max(path.stat().st_size for path in folder.iterdir())
    for room in (0, size // 2, size - 4 * KIB):
        disk.leave(room)
        with pytest.raises(Exception, match="No space left") as failure:
            trainer.save(folder)
        assert out_of_space(failure.value)
        assert disk.files() == kept
        kit.same(checkpoint.load(folder)[0], before, rtol=0, atol=0)
    resumed = rank_kit.trainer_of(Gspo(GspoConfig()))
    resumed.load(folder)
    assert resumed.steps == 1
    disk.free()
    trainer.save(folder)
    resumed.load(folder)
    assert resumed.steps == 2
    for name, value in trainer.state_dict()["tensors"].items():
        assert torch.equal(resumed.state_dict()["tensors"][name], value)


def test_a_disk_that_becomes_read_only_keeps_the_last_checkpoint_and_says_so(disk: Disk) -> None:
    trainer = rank_kit.trainer_of(Gspo(GspoConfig()))
    folder = disk.path / "checkpoint"
    trainer.save(folder, keep=2)
    kept = disk.files()
    disk.read_only()
    with pytest.raises(OSError, match="Read-only file system") as failure:
        trainer.save(folder, keep=2)
    told = storage_error(failure.value, folder)
    assert told is not None and str(told).startswith("the disk is read-only (Read-only file system: ")
    assert disk.files() == kept
    trainer.load(folder)
    disk.read_only(False)
    trainer.steps = 1
    trainer.save(folder, keep=2)
    assert checkpoint.steps(folder) == [0, 1]


def test_a_cache_that_is_read_only_is_told_before_anything_is_made(disk: Disk) -> None:
    cache = StageCache(disk.path)
    (disk.path / "sft").mkdir()
    disk.read_only()
    for name in ("sft", "other"):
        with (
            pytest.raises(ConfigError, match=r"cannot be written: .*ead-only.*set DYNAWEB_CACHE"),
            cache.stage(name, "k"),
        ):
            pytest.fail("it was begun")


def test_a_model_that_finds_no_room_leaves_the_old_one(disk: Disk) -> None:
    folder = disk.path / "model"
    save_model(kit.llama(1), folder)
    kept = disk.files()
    for room in (0, 64 * KIB):
        disk.leave(room)
        with pytest.raises(Exception, match=r"No space left|os error 28") as failure:
            save_model(kit.llama(2), folder)
        assert out_of_space(failure.value)
        assert disk.files() == kept
    kit.same(load_model(folder).state_dict(), kit.llama(1).state_dict(), rtol=0, atol=0)


def test_files_and_links_are_the_old_ones_or_the_new_ones(disk: Disk, tmp_path: Path) -> None:
    write_json(disk.path / "status.json", {"status": "running"})
    source = tmp_path / "weights"  # on another disk, so that it has to be copied
    source.write_bytes(os.urandom(256 * KIB))
    disk.leave(0)
    with pytest.raises(OSError, match="No space left"):
        write_json(disk.path / "status.json", {"status": _noise(64 * KIB)})
    with pytest.raises(OSError, match="No space left"):
        link(source, disk.path / "copy")
    assert disk.files() == ["status.json"]
    assert (disk.path / "status.json").read_text() == '{\n  "status": "running"\n}\n'
    disk.free()
    link(source, disk.path / "copy")
    assert (disk.path / "copy").read_bytes() == source.read_bytes()


def test_only_full_disks_are_called_so(tmp_path: Path) -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert storage_error(refused, tmp_path) is None and storage_error(ValueError("28"), tmp_path) is None
    outer = ValueError("a library's own words")
    outer.__cause__ = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    found = storage_error(outer, tmp_path / "not" / "there")
    assert found is not None and "Disk quota exceeded; " in str(found) and "not/there" in str(found)
    outer.__cause__.filename = str(tmp_path / "store" / "file")
    told = str(storage_error(outer, tmp_path / "not" / "there"))
    assert f"free in {tmp_path / 'store'})" in told and "not/there" not in told, "the disk of that file is full"


def test_a_run_says_that_the_disk_is_full_and_goes_on_with_room(disk: Disk, tmp_path: Path) -> None:
    sets = ["env.task_settings.driver=static", "data.demos=2", "sft.steps=2"]
    command = [sys.executable, "-m", "dynaweb", "sft", "smoke", *(w for one in sets for w in ("--set", one))]
    env = {**os.environ, "DYNAWEB_CACHE": str(disk.path / "cache"), "OMP_NUM_THREADS": "1"}

    def run(name: str) -> subprocess.CompletedProcess[str]:
        out = ["--out", str(disk.path / name)]
        return subprocess.run([*command, *out], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)

    disk.leave(2048 * KIB)
    done = run("first")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: the disk is full (") and "No space left" in last
    assert "MiB are free in" in last and "give `dynaweb sft` again" in last
    assert "Traceback" not in done.stderr
    assert not [name for name in disk.files() if name.endswith((".tmp", ".safetensors"))]
    disk.free()
    assert run("second").returncode == 0
    assert (disk.path / "second" / "checkpoints" / "sft" / "model.safetensors").stat().st_size > 1024 * KIB
