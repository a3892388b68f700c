"""JSON lines that only grow. A line cut short by a kill is dropped when the file is next opened."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dynaweb.config.files import RESTORE, parse_json
from dynaweb.errors import CheckpointError
from dynaweb.masking import masked_data
from dynaweb.runs.space import storage_error


class JsonlWriter:
    """Appends one JSON object a line; each line is handed to the operating system at once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        mend(path)
        self.path = path
        # Without a buffer nothing of a line that could not be written is left to be written later.
        self._file = path.open("ab", buffering=0)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one object without its secrets, or nothing of it. Keys keep their order.

        Raises `StorageError` when the disk is full.
        """
        line = (json.dumps(masked_data(row), ensure_ascii=False) + "\n").encode(errors="backslashreplace")
        end = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError as error:
            self._file.truncate(end)
            raise storage_error(error, self.path.parent) or error from error

    def close(self) -> None:
        """Close the file; twice is allowed."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def mend(path: Path) -> bool:
    """Cut off a torn last line. Returns whether there was one. A missing file is fine."""
    if not path.exists():
        return False
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end == len(data):
        return False
    with path.open("r+b") as file:
        file.truncate(end)
    return True


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Every complete line of a file as an object; none when the file is missing.

    Raises `CheckpointError` for a file that cannot be read, and for a line that is no object of finite numbers.
    """
    if not path.exists():
        return
    number = 1
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield parse_json(line, dict, finite=True)
                number += 1
    except ValueError as error:  # of the bytes, too: text that is not UTF-8
        raise CheckpointError(f"{path} is damaged (line {number}: {error}); {RESTORE}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); {RESTORE}") from error
