"""What the operating system refused to any command, in words that help."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dynaweb.errors import FileError

_OTHER = "give another path"
_WHY = {
    errno.EISDIR: ("is a folder where a file belongs", f"move it away, or {_OTHER}"),
    errno.ENOTDIR: ("is not a folder, or lies in something that is none", f"move the file away, or {_OTHER}"),
    errno.EEXIST: ("is there already", f"move it away, or {_OTHER}"),
    errno.ENOTEMPTY: ("is a folder that is not empty", f"move it away, or {_OTHER}"),
    errno.ENOENT: ("is not there", _OTHER),
    errno.ENAMETOOLONG: ("has a name that is too long", "give a shorter one"),
    errno.ELOOP: ("is a link that leads to itself", _OTHER),
}
"""What is wrong with a path, and what to do about it."""
_SHOWN = 200
"""Letters of a path that a message shows."""
_LIMITS = {
    errno.EMFILE: "too many files are open; allow more with `ulimit -n`",
    errno.ENFILE: "the machine has too many files open; end other programs, then repeat the command",
    errno.EIO: "a disk failed to read or write; look at the system's log, then repeat the command",
    errno.ENOMEM: "the machine has no memory left; end other programs, then repeat the command",
}


def file_error(error: BaseException) -> FileError | None:
    """An error about a file or folder that no command foresaw: which path, why, and what to do. None for others."""
    if not isinstance(error, OSError):
        return None
    if _nowhere():
        return FileError("the folder that the command was given in is gone; change to another one with cd")
    if error.errno in _LIMITS:
        return FileError(_LIMITS[error.errno])
    path = error.filename2 if error.filename2 is not None else error.filename
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return FileError(_sentence(path, error)) if isinstance(path, str) and path else None


def _sentence(path: str, error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{_denied(path)}: {error.strerror}; get the right to it (chmod, chown), or {_OTHER}"
    if error.errno in _WHY:
        what, advice = _WHY[error.errno]
        path = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}..."
        return f"{path} {what}; {advice}"
    return f"{path} cannot be used: {error.strerror}; {_OTHER}, or see with --debug what was tried"


def _denied(path: str) -> str:
    """What of a path this user may not do."""
    if not os.path.lexists(path):
        place = Path(path).parent
        while not os.path.lexists(place) and place != place.parent:
            place = place.parent
        verb = "written" if _may(place, os.X_OK) else "entered"
        return f"{path} cannot be reached or made, because {place} cannot be {verb}"
    if not _may(path, os.R_OK):
        return f"{path} cannot be read"
    return f"{path} cannot be {'changed' if _may(path, os.W_OK) else 'written'}"


def _may(path: str | Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _nowhere() -> bool:
    """Whether the working directory has been deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
