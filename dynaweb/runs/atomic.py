"""Atomic writes: after a kill at any point, a file is the old one or the new one, never half of one."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dynaweb.masking import masked, masked_data


def write_text(path: Path, text: str, *, verbatim: bool = False) -> None:
    """Write UTF-8 text, without the secrets in it unless it is `verbatim`. Folders above are made."""
    text = text if verbatim else masked(text)
    write_with(path, lambda temporary: _write(temporary, text))


def write_json(path: Path, data: Any, *, verbatim: bool = False) -> None:
    """Write plain data as indented JSON with a final newline, without the secrets in it unless it is `verbatim`."""
    data = data if verbatim else masked_data(data)
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n", verbatim=True)


def finite(data: Any) -> Any:
    """Plain data in which numbers that JSON does not have (nan, inf) are null, for files that others read."""
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def write_with(path: Path, save: Callable[[Path], object]) -> None:
    """Let `save` write to a temporary path beside `path`, then put the result in place.

    For libraries that write files themselves: `write_with(path, lambda tmp: torch.save(state, tmp))`. When `save`
    raises, the old file stays and nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write_temporary(path, save)
    except OSError as error:
        # Neither a temporary name nor none, as writing to an open file gives, says what could not be written.
        if error.filename is None or Path(error.filename).name.startswith(f".{path.name}."):
            error.filename, error.filename2 = str(path), None
        raise
    sync(path.parent)


def _write_temporary(path: Path, save: Callable[[Path], object]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        save(temporary)
        # mkstemp makes private files; a result is as readable as any other file of the user.
        temporary.chmod(0o666 & ~_umask())
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def rename_folder(source: Path, target: Path) -> None:
    """Put a finished folder in place: all its files reach the disk first. `target` must not exist."""
    for path in sorted(source.rglob("*")):
        if not path.is_symlink():
            sync(path)
    sync(source)
    source.rename(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems refuse to sync folders
        if not path.is_dir():
            raise
    finally:
        os.close(handle)


def _write(path: Path, text: str) -> None:
    # A name of a file may be no UTF-8; so written it is an escape, as JSON has it.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _umask() -> int:
    # The only portable way to read it is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
