"""Append-only stores of trajectories and transitions: compact, safe against kill -9, read in constant memory.

A store is one file of gzip chunks (see `chunks`) of JSON Lines (see `codec`). Observations are found again by a hash
of their content: each page is written once, as a line `{"page": ...}`, and records refer to it as `"back:page"`, so
many chunks before their own; so the files of stores of one kind can be joined, unless an earlier version, whose
references count from the beginning of the file, has written them. A reader holds one chunk and a bounded number of
recently used pages, however long the file is.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import accumulate, islice
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from dynaweb.config.files import MALFORMED
from dynaweb.data.chunks import ChunkFile
from dynaweb.data.codec import Json, read, read_page, to_json
from dynaweb.errors import CheckpointError, ConfigError, MissingError
from dynaweb.runs.checksums import check_store
from dynaweb.types import Observation, Trajectory, Transition

log = logging.getLogger(__name__)
T = TypeVar("T", Trajectory, Transition)

CHUNK_RECORDS = 128
"""Most records of one chunk."""
BATCH_RECORDS = 1024
"""Records of one batch of `Store.extend`."""
KNOWN_PAGES = 65_536
"""How many distinct pages a writer remembers; an older one that comes back is simply written again."""
CACHED_PAGES = 4_096
"""How many decoded pages a reader keeps."""
SUFFIX = ".jsonl.gz"


class Store(Generic[T]):
    """Records of one kind in one file. `len`, indexing and iteration see what was there when it was opened.

    Appending is for one writer at a time. A missing file is an empty store; the first batch makes it.
    """

    record: ClassVar[type]

    def __init__(self, path: Path) -> None:
        self._file = ChunkFile(path)
        self._known = _Known()
        self._pages = _PageCache(self._file)

    @classmethod
    def write(cls, path: Path, records: Iterable[T]) -> None:
        """Write a whole store in one piece: a kill leaves the old file or the new one. No records: an empty file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        part.touch()
        cls(part).extend(records)
        part.replace(path)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def torn(self) -> int:
        """Bytes of an unfinished batch at the end: not part of the store, gone with the next batch."""
        return self._file.torn

    def append(self, batch: Iterable[T]) -> int:
        """Add records as one batch, all or none, and return their number when they are on the disk."""
        records = list(batch)
        if not records:
            return 0
        self._file.refresh()
        first = len(self._file.chunks)
        parts: list[tuple[list[str], int]] = []
        try:
            for start in range(0, len(records), CHUNK_RECORDS):
                lines = _ChunkWriter(self._known, first + len(parts))
                part = records[start : start + CHUNK_RECORDS]
                parts.append((lines.write(part), len(part)))
            self._file.append(parts)
        except BaseException:
            # Pages of a batch that was not written must not be referred to by the next one.
            self._known = _Known()
            raise
        return len(records)

    def extend(self, records: Iterable[T]) -> int:
        """Add any number of records in constant memory, in batches of `BATCH_RECORDS`; returns their number.

        After a kill, whole batches are there.
        """
        count = 0
        source = iter(records)
        while batch := list(islice(source, BATCH_RECORDS)):
            count += self.append(batch)
        return count

    def refresh(self) -> int:
        """Look for records that another process has added; returns the new length."""
        self._file.refresh()
        return len(self)

    def __len__(self) -> int:
        return sum(chunk.records for chunk in self._file.chunks)

    def __iter__(self) -> Iterator[T]:
        return self.iterate()

    def __getitem__(self, index: int) -> T:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"{self.path} has {len(self)} records; there is no record {index}")
        return next(self.iterate(position))

    def iterate(self, start: int = 0) -> Iterator[T]:
        """Records from number `start` on, in the order in which they were added."""
        ends = list(accumulate(chunk.records for chunk in self._file.chunks))
        for at, end in enumerate(ends):
            if end > start:
                skip = max(0, start - (end - self._file.chunks[at].records))
                yield from self._read(at, skip)

    def first_keys(self) -> set[str]:
        """The keys of the first record, which tell its kind; none of an empty store."""
        if not self._file.chunks:
            return set()
        line = next((line for line in self._file.lines(0) if not line.startswith(_PAGE_LINE)), "{}")
        try:
            return set(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            return set()

    def _read(self, index: int, skip: int) -> Iterator[T]:
        lines = [line for line in self._file.lines(index) if not line.startswith(_PAGE_LINE)]
        for line in lines[skip:]:
            self._pages.chunk = index
            try:
                record: T = read(_parse(line), self.record, self._pages)
            except MALFORMED as error:
                raise CheckpointError(f"{self.path}: a record of chunk {index} cannot be read: {error}") from error
            yield record


class TrajectoryStore(Store[Trajectory]):
    """Episodes, real, dreamed or by an expert."""

    record = Trajectory


class TransitionStore(Store[Transition]):
    """Steps of a real browser: page, action, next page."""

    record = Transition


def existing(path: Path) -> TransitionStore:
    """The transition store in a file that has to be there; tells where its end is not whole.

    Raises `MissingError` for no file, `ConfigError` for one that holds trajectories.
    """
    store = open_store(path)
    if not isinstance(store, TransitionStore):
        raise ConfigError(
            f"{path} holds whole episodes, and this is for transitions; make these with dynaweb data import run"
        )
    return store


def existing_trajectories(path: Path) -> TrajectoryStore:
    """The same for trajectories."""
    store = open_store(path)
    if len(store) and not isinstance(store, TrajectoryStore):
        raise ConfigError(
            f"{path} holds transitions, and this is for whole episodes; import these with dynaweb data import "
            "--trajectories"
        )
    return TrajectoryStore(path)


def open_store(path: Path) -> TrajectoryStore | TransitionStore:
    """The store in a file that has to be there, of the kind of its first record; an empty one is of transitions.

    Raises `CheckpointError` for one of a finished run that is not what the run has left.
    """
    if not path.is_file():
        raise MissingError(
            f"there is no transition or trajectory store {path}; make one with dynaweb collect or dynaweb data import"
        )
    check_store(path)
    store: TrajectoryStore | TransitionStore = TransitionStore(path)
    if not path.stat().st_size:
        log.warning("%s has 0 bytes, so it holds nothing: if it held records, it was cut; bring back a copy", path)
    if store.torn:
        log.warning(
            "%s: the last %d of %d bytes are an unfinished write and left out", path, store.torn, path.stat().st_size
        )
    return TrajectoryStore(path) if store.first_keys() >= {"task", "steps"} else store


_PAGE_LINE = '{"page":'


def _no_number(name: str) -> Json:
    raise ValueError(f"{name} is no number of JSON")


_parse = json.JSONDecoder(parse_constant=_no_number).decode


def _dump(data: Json) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class _Known(OrderedDict[bytes, tuple[int, int]]):
    """Content hash of a page -> (chunk, position among the pages of that chunk), the recently used ones."""

    def find(self, key: bytes) -> tuple[int, int] | None:
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def learn(self, key: bytes, position: tuple[int, int]) -> None:
        self[key] = position
        if len(self) > KNOWN_PAGES:
            self.popitem(last=False)


class _ChunkWriter:
    """Lines of one chunk; a page comes before the first record that shows it."""

    def __init__(self, known: _Known, chunk: int) -> None:
        self._known, self._chunk = known, chunk
        self._lines: list[str] = []
        self._count = 0

    def write(self, records: Iterable[Trajectory | Transition]) -> list[str]:
        """The lines of these records and of their new pages."""
        for record in records:
            self._lines.append(_dump(to_json(record, self)))
        return self._lines

    def put(self, page: Json) -> Json:
        """Reference of a page, written now if it is new."""
        text = _dump(page)
        key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        position = self._known.find(key)
        if position is None:
            position = (self._chunk, self._count)
            self._count += 1
            self._lines.append(f"{_PAGE_LINE}{text}}}")
            self._known.learn(key, position)
        return f"{self._chunk - position[0]}:{position[1]}"

    def get(self, reference: Json) -> Observation:
        """Writers never read."""
        raise TypeError(f"page {reference} was asked of a writer")


class _PageCache:
    """Decoded pages by reference, the recently used ones; a miss reads all pages of that chunk.

    `chunk` is that of the record which is read.
    """

    def __init__(self, file: ChunkFile) -> None:
        self._file = file
        self.chunk = 0
        self._pages: OrderedDict[tuple[int, int], Observation] = OrderedDict()

    def put(self, page: Json) -> Json:
        """Readers never write."""
        raise TypeError("a page was given to a reader")

    def get(self, reference: Json) -> Observation:
        """The page at `"back:position"`; earlier versions wrote `[chunk, position]`."""
        if isinstance(reference, str):
            back, _, position = reference.partition(":")
            key = (self.chunk - int(back), int(position))
        else:
            key = (reference[0], reference[1])
        if key not in self._pages:
            self._load(key[0])
        self._pages.move_to_end(key)
        return self._pages[key]

    def _load(self, chunk: int) -> None:
        if not 0 <= chunk < len(self._file.chunks):
            raise ValueError(f"a record refers to chunk {chunk}, which is not there")
        lines = [line for line in self._file.lines(chunk) if line.startswith(_PAGE_LINE)]
        for position, line in enumerate(lines):
            self._pages[chunk, position] = read_page(_parse(line)["page"])
        while len(self._pages) > max(CACHED_PAGES, len(lines)):
            self._pages.popitem(last=False)
