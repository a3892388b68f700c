"""An append-only file of gzip members: batches of text lines that are there wholly or not at all.

Each member (chunk) is a complete gzip file, so `zcat` prints everything; its header carries, in an extra field as the
gzip format (RFC 1952) provides, its length, how many records it holds, and whether it closes a batch, and in the field
for a time a checksum of these. So a file is opened by hopping from header to header, and any chunk can be read alone.
A batch counts once its closing chunk is whole; what stands behind the last whole batch was torn by a kill or a crash:
readers ignore it, writers cut it off. Only what a torn write can leave is taken for one: the beginning of a batch, or
blocks of zeros. Anything else is damage, which neither may hide.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dynaweb.errors import CheckpointError

_HEAD = struct.Struct("<4sIBBH2sHQIB")
"""gzip magic, method and flags; time; two flag bytes; extra length; its id and size; chunk bytes, records, closes."""
_TAIL = struct.Struct("<II")
_MAGIC = b"\x1f\x8b\x08\x04"
_ID = b"DW"
_EXTRA = 13
_ZEROS = bytes(512)
"""What a block reads as that never reached the disk."""
_LEVEL = 6
_LONGEST = 2**30
"""Bytes of the text of a chunk."""
_MOST_LINES = 2**20
"""Of a chunk: far more than records and pages that are written as one."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a chunk lies (`offset`, `size` in bytes), how many records it holds, and whether it ends its batch."""

    offset: int
    size: int
    records: int
    closes: bool


class ChunkFile:
    """One file for one writer and any number of readers, in this process or others.

    A reader sees what was there when it opened the file; `refresh` looks again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chunks: list[Chunk] = []
        self.torn = 0
        """Bytes behind the last whole batch."""
        self.refresh()

    def refresh(self) -> None:
        """Look for batches that were appended since.

        Raises `CheckpointError` if this is no such file, or if what stands behind its whole batches is damaged.
        """
        if not self.path.exists():
            return
        if not self.path.is_file():
            raise CheckpointError(f"{self.path} is a folder or a device, not a file; give the path of a store")
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            added = _scan(file, self.end, size)
            if not added and not self.chunks and size:
                _refuse_foreign(file, self.path)
            end = added[-1].offset + added[-1].size if added else self.end
            if not _is_torn(file, end, size):
                raise CheckpointError(
                    f"{self.path} is damaged behind byte {end} of {size}, and that is no unfinished write; restore the "
                    "file from a copy, or delete it and repeat what wrote it"
                )
        self.chunks.extend(added)
        self.torn = size - self.end

    @property
    def end(self) -> int:
        """Where the next batch goes: the byte behind the last whole batch."""
        return self.chunks[-1].offset + self.chunks[-1].size if self.chunks else 0

    def lines(self, index: int) -> list[str]:
        """All lines of one chunk. Raises `CheckpointError` when its bytes have changed since they were written."""
        chunk = self.chunks[index]
        with self.path.open("rb") as file:
            file.seek(chunk.offset)
            text = _unpack(file.read(chunk.size))
        if text is None:
            raise CheckpointError(
                f"{self.path}: chunk {index} at byte {chunk.offset} is damaged (its checksum does not fit); "
                "restore the file from a copy, or delete it and repeat the stage that wrote it"
            )
        return text.decode("utf-8", "surrogatepass").split("\n")[:-1]

    def append(self, parts: Sequence[tuple[Sequence[str], int]]) -> None:
        """Write one batch, given as (lines, number of records) a chunk, and return when it is on the disk."""
        self.refresh()
        packed = [_pack(lines, records, at == len(parts) - 1) for at, (lines, records) in enumerate(parts)]
        fresh = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._write(b"".join(packed), fresh)
        except OSError as error:
            self._cut(fresh)
            # Writing to an open file says why, not where.
            error.filename = error.filename or str(self.path)
            raise
        if fresh:
            _sync_folder(self.path.parent)
        for at, (data, (_, records)) in enumerate(zip(packed, parts, strict=True)):
            self.chunks.append(Chunk(self.end, len(data), records, at == len(parts) - 1))
        self.torn = 0

    def _write(self, data: bytes, fresh: bool) -> None:
        with self.path.open("xb" if fresh else "r+b") as file:
            file.truncate(self.end)
            file.seek(self.end)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _cut(self, fresh: bool) -> None:
        """Give back what a batch has taken that a full disk left unfinished."""
        with suppress(OSError):
            if fresh:
                self.path.unlink(missing_ok=True)
            else:
                os.truncate(self.path, self.end)
                self.torn = 0


def _pack(lines: Sequence[str], records: int, closes: bool) -> bytes:
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(text) + deflate.flush()
    size = _HEAD.size + len(body) + _TAIL.size
    head = _HEAD.pack(_MAGIC, _stamp(size, records, closes), 0, 255, _EXTRA + 4, _ID, _EXTRA, size, records, closes)
    return head + body + _TAIL.pack(zlib.crc32(text), len(text) & 0xFFFFFFFF)


def _stamp(size: int, records: int, closes: int) -> int:
    return zlib.crc32(b"%d %d %d" % (size, records, closes)) or 1


def _unpack(data: bytes) -> bytes | None:
    """The text of a chunk, or None when it is torn or damaged."""
    crc, length = _TAIL.unpack(data[-_TAIL.size :])
    if length > _LONGEST:
        return None
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        # Whoever packs zeros a thousand times over has no more of them unpacked than the end says.
        text = inflate.decompress(data[_HEAD.size : -_TAIL.size], length + 1)
    except zlib.error:
        return None
    whole = inflate.eof and not inflate.unused_data and len(text) == length
    return text if whole and zlib.crc32(text) == crc and text.count(b"\n") <= _MOST_LINES else None


def _scan(file: BinaryIO, start: int, size: int) -> list[Chunk]:
    """The chunks of all whole batches from `start` on; only the last batch can be torn, so only it is read."""
    chunks: list[Chunk] = []
    offset = start
    while (chunk := _head(file, offset, size)) is not None:
        chunks.append(chunk)
        offset += chunk.size
    while chunks and not _whole_batch(file, chunks):
        chunks.pop()
    return chunks


def _head(file: BinaryIO, offset: int, size: int) -> Chunk | None:
    file.seek(offset)
    data = file.read(_HEAD.size)
    if len(data) < _HEAD.size:
        return None
    if not _is_head(data):
        return None
    *_, length, records, closes = _HEAD.unpack(data)
    return Chunk(offset, length, records, bool(closes)) if offset + length <= size else None


def _is_head(data: bytes) -> bool:
    """Whether a chunk begins so. Chunks of earlier versions have no checksum there."""
    magic, stamp, _, _, _, mark, _, length, records, closes = _HEAD.unpack(data)
    known = stamp in (0, _stamp(length, records, closes))
    return known and magic == _MAGIC and mark == _ID and length >= _HEAD.size + _TAIL.size


def _whole_batch(file: BinaryIO, chunks: list[Chunk]) -> bool:
    """Whether the last chunk closes its batch and every chunk of that batch is sound."""
    if not chunks[-1].closes:
        return False
    for at in range(len(chunks) - 1, -1, -1):
        if at < len(chunks) - 1 and chunks[at].closes:
            break
        file.seek(chunks[at].offset)
        if _unpack(file.read(chunks[at].size)) is None:
            return False
    return True


def _is_torn(file: BinaryIO, start: int, size: int) -> bool:
    """Whether the bytes from `start` on are what an unfinished write leaves.

    These are whole chunks of a batch that is not closed, then one that is cut off, or zeros where blocks never reached
    the disk.
    """
    offset = start
    while (chunk := _head(file, offset, size)) is not None:
        file.seek(offset)
        data = file.read(chunk.size)
        if _unpack(data) is None:
            return _ZEROS in data or data.endswith(bytes(_TAIL.size))
        offset += chunk.size
        if chunk.closes:
            return False
    file.seek(offset)
    rest = file.read(_HEAD.size)
    if not rest.strip(b"\0"):
        return True
    if len(rest) < _HEAD.size:
        return _MAGIC.startswith(rest[: len(_MAGIC)])
    return _is_head(rest)


def _refuse_foreign(file: BinaryIO, path: Path) -> None:
    """A file that does not even begin like ours is not cut off: it is somebody else's."""
    file.seek(0)
    begin = file.read(len(_MAGIC))
    if not _MAGIC.startswith(begin):
        raise CheckpointError(
            f"{path} is not a dynaweb store (it begins with {begin!r}); give another path, or move that file away"
        )


def _sync_folder(folder: Path) -> None:
    """Make the new file's name durable too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
