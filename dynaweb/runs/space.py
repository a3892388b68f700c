"""Disks that are full, or read-only from one moment to the next: what of an error says so, and the words for it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from dynaweb.errors import StorageError

FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space left on the device; the user's share of it is used up."""
UNWRITABLE = (*FULL, errno.EROFS)
"""The same, and a file system that is read-only, as the kernel makes one of a disk with errors."""


def out_of_space(error: BaseException) -> bool:
    """Whether a disk that takes nothing more is behind an error, also where a library has put it into its own words."""
    return any(isinstance(one, StorageError) or _says_so(one) for one in _chain(error))


def storage_error(error: BaseException, *folders: Path) -> StorageError | None:
    """The error in words that help; None for other errors.

    It tells what is free beside the file that could not be written or, where the error names none, in the `folders`
    that are written to.
    """
    if isinstance(error, StorageError):
        return error
    if not out_of_space(error):
        return None
    if isinstance(path := getattr(_last(error), "filename", None), str):
        folders = (Path(path).parent,)
    free = ", ".join(f"{_free(folder):.0f} MiB are free in {folder}" for folder in folders)
    return StorageError(
        f"the disk is {_state(error)} ({_words(error)}{f'; {free}' if free else ''}). Nothing half-written is left, and"
        " what was finished is kept"
    )


def _says_so(error: BaseException) -> bool:
    return _number(error) is not None


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return error.errno
    # safetensors and tokenizers are written in Rust, whose errors reach Python as text.
    return next((number for number in UNWRITABLE if f"(os error {number})" in str(error)), None)


def _state(error: BaseException) -> str:
    return "read-only" if any(_number(one) == errno.EROFS for one in _chain(error)) else "full"


def _chain(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _words(error: BaseException) -> str:
    last = _last(error)
    path = getattr(last, "filename", None)
    return f"{getattr(last, 'strerror', None) or last}{f': {path}' if path else ''}"


def _last(error: BaseException) -> BaseException:
    return [one for one in _chain(error) if _says_so(one) or isinstance(one, StorageError)][-1]


def _free(folder: Path) -> float:
    """MiB that can be written below a folder, which need not be there yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free / 2**20
