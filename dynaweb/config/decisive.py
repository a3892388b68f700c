"""What cache keys hold of a plugin's settings: all that a result can depend on, and nothing else.

A settings class may say of its own fields, as class variables:

    WITHOUT_EFFECT  settings that no result depends on, such as the price of a model server
    FILES           settings that are paths of files: what a file holds counts, not where it lies
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def decisive(config: BaseModel) -> dict[str, Any]:
    """Settings as plain data, of settings inside of them too. A file that is not there counts by its path."""
    data = config.model_dump(mode="json")
    for name, value in config:
        if name in getattr(config, "WITHOUT_EFFECT", ()):
            del data[name]
        elif isinstance(value, BaseModel):
            data[name] = decisive(value)
        elif value and name in getattr(config, "FILES", ()):
            data[name] = file_key(Path(str(value))) or value
    return data


def file_key(path: Path) -> str:
    """A hash (20 hex digits) of what a file holds, '' when there is no file."""
    if not path.is_file():
        return ""
    found = path.stat()
    return _hash(path.resolve(), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=64)
def _hash(path: Path, size: int, changed: int) -> str:
    """Keys are asked for often, and stores are large: a file is read again only when it looks changed."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:20]
