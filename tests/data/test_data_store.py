from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import tracemalloc
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from folders import KITS

from dynaweb.data import chunks
from dynaweb.data import store as store_module
from dynaweb.data.chunks import ChunkFile
from dynaweb.data.codec import to_json
from dynaweb.data.store import TrajectoryStore, TransitionStore, open_store
from dynaweb.errors import CheckpointError
from dynaweb.types import Action, Node, Observation, Prompt, Step, Task, Trajectory, Transition

TASK = Task("read:train:1:0", "Open the cart", "http://shop.localhost/")


def page(number: int, size: int = 20) -> Observation:
    nodes = tuple(Node(at + 1, "link", f"Item {number}-{at} \u2028 ü", depth=at % 3) for at in range(size))
    return Observation(f"http://shop.localhost/{number}", nodes)


def trajectory(number: int, pages: int = 3) -> Trajectory:
    steps = tuple(
        Step(
            page(number * 100 + at),
            Action("click", 1, target_role="link"),
            reply="click",
            prompt=Prompt(tuple(range(9))),
        )
        for at in range(pages)
    )
    return Trajectory(f"t{number}", TASK, steps, page(0), "dream", "stop", reward=float(number % 2), seed=number)


def test_records_come_back_in_order_and_at_random(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.jsonl.gz"
    written = [trajectory(number) for number in range(10)]
    store = TrajectoryStore(path)
    assert len(store) == 0
    assert list(store) == []
    assert store.append(written[:4]) == 4
    assert store.append([]) == 0
    store.append(iter(written[4:]))
    for opened in (store, TrajectoryStore(path)):
        assert list(opened) == written
        assert opened[7] == written[7]
        assert opened[-1] == written[9]
        assert list(opened.iterate(6)) == written[6:]
        assert list(opened.iterate(10)) == []
    with pytest.raises(IndexError, match="no record 10"):
        store[10]


def test_a_page_is_written_once_in_the_file(tmp_path: Path) -> None:
    store = TransitionStore(tmp_path / "x.jsonl.gz")
    for number in range(3):
        there = Transition(page(1), Action("click", number), page(2))
        store.append([there, Transition(page(2), Action("wait"), page(1))])
    lines = [json.loads(line) for line in gzip.decompress(store.path.read_bytes()).decode().split("\n") if line]
    assert sum("page" in line for line in lines) == 2
    assert sum(line.get("$") == "Transition" for line in lines) == 6
    assert [item.observation for item in TransitionStore(store.path)] == [page(1), page(2)] * 3


def test_a_writer_that_forgot_old_pages_writes_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "KNOWN_PAGES", 2)
    monkeypatch.setattr(store_module, "CACHED_PAGES", 2)
    store = TrajectoryStore(tmp_path / "x.jsonl.gz")
    written = [trajectory(number % 3, pages=5) for number in range(9)]
    for item in written:
        store.append([item])
    assert list(TrajectoryStore(store.path)) == written


def test_every_torn_tail_is_dropped_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    TrajectoryStore(path).append([trajectory(0)])
    whole = path.stat().st_size
    TrajectoryStore(path).append([trajectory(1), trajectory(2)])
    data = path.read_bytes()
    for cut in [*range(whole, len(data), 7), len(data) - 1]:
        path.write_bytes(data[:cut])
        store = TrajectoryStore(path)
        assert list(store) == [trajectory(0)], cut
        assert store.torn == cut - whole
    path.write_bytes(data[:-20] + b"\0" * 20)
    store = TrajectoryStore(path)
    assert len(store) == 1
    store.append([trajectory(3)])
    assert store.torn == 0
    assert list(TrajectoryStore(path)) == [trajectory(0), trajectory(3)]


def test_a_batch_of_several_chunks_is_there_wholly_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHUNK_RECORDS", 2)
    path = tmp_path / "x.jsonl.gz"
    store = TrajectoryStore(path)
    store.append([trajectory(0)])
    whole = path.stat().st_size
    store.append([trajectory(number) for number in range(1, 8)])
    data = path.read_bytes()
    assert list(TrajectoryStore(path)) == [trajectory(number) for number in range(8)]
    for cut in range(whole, len(data), 97):
        path.write_bytes(data[:cut])
        assert len(TrajectoryStore(path)) == 1, cut


def test_a_failed_batch_leaves_no_dangling_pages(tmp_path: Path) -> None:
    store = TransitionStore(tmp_path / "x.jsonl.gz")
    bad = Transition(page(1), Action("wait"), page(2), info={"x": {1}})
    with pytest.raises(TypeError, match="cannot write a set"):
        store.append([Transition(page(1), Action("wait"), page(2)), bad])
    good = Transition(page(2), Action("wait"), page(1))
    store.append([good])
    assert list(TransitionStore(store.path)) == [good]


def test_a_reader_sees_what_another_process_adds(tmp_path: Path) -> None:
    reader = TrajectoryStore(tmp_path / "x.jsonl.gz")
    TrajectoryStore(reader.path).append([trajectory(0)])
    assert len(reader) == 0
    assert reader.refresh() == 1
    assert reader[0] == trajectory(0)


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2].split(":")
from test_data_store import trajectory
from dynaweb.data.store import TrajectoryStore
store = TrajectoryStore(Path(sys.argv[1]))
for number in range(0, 100_000, 4):
    store.append([trajectory(n) for n in range(number, number + 4)])
    print(number + 4, flush=True)
"""


def test_kill_9_in_the_middle_of_writing_loses_no_finished_batch(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    command = [sys.executable, "-c", WRITER, str(path), f"{Path(__file__).parent}:{KITS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        confirmed = [int(process.stdout.readline()) for _ in range(12)]
        os.kill(process.pid, signal.SIGKILL)
        confirmed += [int(line) for line in process.stdout]
    store = TrajectoryStore(path)
    assert len(store) >= confirmed[-1]
    assert len(store) % 4 == 0
    assert [item.id for item in store] == [f"t{number}" for number in range(len(store))]


def test_streaming_needs_constant_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CACHED_PAGES", 64)

    def peak(path: Path) -> int:
        tracemalloc.start()
        assert sum(1 for _ in TrajectoryStore(path)) == len(TrajectoryStore(path))
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    store = TrajectoryStore(tmp_path / "x.jsonl.gz")
    for batch in range(4):
        store.append(trajectory(batch * 16 + number) for number in range(16))
    first = peak(store.path)
    for batch in range(4, 24):
        store.append(trajectory(batch * 16 + number) for number in range(16))
    assert peak(store.path) < 1.3 * first


def test_thousands_of_trajectories_are_small(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "x.jsonl.gz")
    pages = [page(number) for number in range(40)]
    steps = [tuple(Step(pages[(n + at) % 40], Action("wait")) for at in range(6)) for n in range(1000)]
    records = [Trajectory(f"t{n}", TASK, steps[n], None, "real", "stop") for n in range(1000)]
    store.append(records)
    assert store.path.stat().st_size < 60 * len(records)


def test_damage_in_the_middle_is_an_error_not_a_wrong_record(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    store = TrajectoryStore(path)
    store.append([trajectory(0)])
    middle = path.stat().st_size // 2
    store.append([trajectory(1)])
    data = bytearray(path.read_bytes())
    data[middle] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="chunk 0 at byte 0 is damaged"):
        list(TrajectoryStore(path))


def test_damage_never_makes_a_shorter_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a byte changes: all records are read as they were, or it is an error; a writer never cuts them off."""
    monkeypatch.setattr(store_module, "CHUNK_RECORDS", 2)
    path, written = tmp_path / "x.jsonl.gz", [trajectory(number) for number in range(7)]
    for batch in (written[:1], written[1:5], written[5:]):
        TrajectoryStore(path).append(batch)
    data, found = path.read_bytes(), Counter[str]()
    heads = [at + more for at in range(len(data)) if data[at : at + 4] == b"\x1f\x8b\x08\x04" for more in range(34)]
    for at in sorted({*heads, *range(0, len(data), 41), *range(len(data) - 9, len(data))} & set(range(len(data)))):
        changed = bytearray(data)
        changed[at] ^= 0xA5
        path.write_bytes(changed)
        with suppress(CheckpointError):
            read = list(TrajectoryStore(path))
            assert read == written, at
            found["read"] += 1
        size = path.stat().st_size
        try:
            TrajectoryStore(path).append([trajectory(9)])
        except CheckpointError:
            found["refused"] += 1
            assert path.read_bytes() == changed
        else:
            assert path.read_bytes()[:size] == changed, at
    assert found["refused"] > 40 and found["read"] > 5


def test_stores_can_be_joined_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHUNK_RECORDS", 2)
    parts = []
    for name, numbers in (("a", range(5)), ("b", range(3, 9))):
        store = TrajectoryStore(tmp_path / name)
        for number in numbers:
            store.append([trajectory(number), trajectory(number + 1)])
        parts += list(store)
    both = tmp_path / "both"
    both.write_bytes(b"".join((tmp_path / name).read_bytes() for name in "ab"))
    store = TrajectoryStore(both)
    assert list(store) == parts and store[len(parts) - 1] == parts[-1]
    store.append([trajectory(1)])
    assert list(TrajectoryStore(both)) == [*parts, trajectory(1)]


class Absolute:
    """References as earlier versions wrote them: `[chunk, page]`, counted from the beginning of the file."""

    def put(self, page: Any) -> Any:
        self.page = page
        return [0, 0]

    def get(self, reference: Any) -> Observation:
        raise NotImplementedError


def test_references_of_earlier_versions_are_read(tmp_path: Path) -> None:
    pages, written = Absolute(), Transition(page(1), Action("wait"), page(1))
    line = json.dumps(to_json(written, pages))
    file = ChunkFile(tmp_path / "old")
    file.append([([f'{{"page":{json.dumps(pages.page)}}}'], 0)])
    file.append([([line], 1)])
    assert list(TransitionStore(file.path)) == [written]


def test_somebody_elses_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("do not cut me off")
    with pytest.raises(CheckpointError, match="not a dynaweb store"):
        TrajectoryStore(path)
    assert path.read_text() == "do not cut me off"


def test_a_store_of_another_kind_is_refused(tmp_path: Path) -> None:
    TransitionStore(tmp_path / "x.jsonl.gz").append([Transition(page(1), Action("wait"), page(2))])
    with pytest.raises(CheckpointError, match="expected Trajectory data"):
        list(TrajectoryStore(tmp_path / "x.jsonl.gz"))


def test_a_store_that_was_cut_to_nothing_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.touch()
    assert len(open_store(path)) == 0
    assert "has 0 bytes, so it holds nothing: if it held records, it was cut" in caplog.text


@pytest.mark.parametrize(("size", "says"), [(64, 64), (64, 1), (1, 1)])
def test_a_store_that_unpacks_to_far_more_than_it_is_fills_no_memory(
    size: int, says: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MiB of empty lines, and how many its end says that it has: too much text, and too many lines."""
    monkeypatch.setattr(chunks, "_LONGEST", 2**23)
    monkeypatch.setattr(chunks, "_MOST_LINES", 1000)
    text = b"\n" * (size * 2**20)
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(text) + deflate.flush()
    whole = chunks._HEAD.size + len(body) + chunks._TAIL.size
    fields = (0, 255, chunks._EXTRA + 4, chunks._ID, chunks._EXTRA, whole, 1, 1)
    head = chunks._HEAD.pack(chunks._MAGIC, chunks._stamp(whole, 1, 1), *fields)
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(head + body + chunks._TAIL.pack(zlib.crc32(text), says * 2**20))
    tracemalloc.start()
    try:
        with suppress(CheckpointError):
            store = TransitionStore(path)
            assert len(store) == 0 and store.torn == path.stat().st_size
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
