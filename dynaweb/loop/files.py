"""Files of stages and runs: links to results, and the hash that identifies weights."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path

from dynaweb.errors import ConfigError
from dynaweb.runs.atomic import write_with


def link(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy where links are not possible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with suppress(OSError):
        target.hardlink_to(source)
        return
    write_with(target, lambda temporary: shutil.copyfile(source, temporary))


def files_hash(folder: Path) -> str:
    """A hash of the names and contents of all files of a folder. Raises `ConfigError` when it has none."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise ConfigError(f"the model folder {folder} holds no files")
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:20]
