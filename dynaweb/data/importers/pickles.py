"""Pickles of strangers, read by a process of their own that can neither run their code nor take more than its share.

A pickle may say little and mean much: a range of a billion numbers in a set, one list a thousand times in another, a
place in the memo that takes gigabytes. So this file is also a script. It unpickles, with every class an inert record,
under limits of the operating system on its memory and on its processor time for each file, and prints of each the few
plain values that an importer wants. Nothing of dynaweb is imported there.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MEMORY, SECONDS = 2**31, 5
"""Bytes that the process may take, and seconds of the processor that one file may."""
LARGEST = 2**26
"""Bytes of a file when it is unpacked, and of what is handed on of it."""
MOST_PIXELS = 50_000_000
"""Of one picture."""
Record = dict[str, Any] | str
"""A step, or why it cannot be read."""
DAMAGED = "its file is damaged"
TOO_LARGE = f"its file takes more than {LARGEST >> 20} MiB, {MEMORY >> 20} MiB of memory or {SECONDS} seconds to read"

_SAFE = {
    ("builtins", name): value
    for name, value in (
        ("set", set),
        ("frozenset", frozenset),
        ("bytearray", bytearray),
        ("complex", complex),
        ("slice", slice),
        ("range", range),
    )
} | {("collections", "OrderedDict"): dict}


class _Inert:
    """Stands in for any class of a pickle: keeps what it is given, does nothing."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.args = args
        self.__dict__.update(named)

    def __setstate__(self, state: Any) -> None:
        self.state = state
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                self.__dict__.update({str(key): value for key, value in part.items()})

    def __setitem__(self, key: Any, value: Any) -> None:
        """Dict-like classes fill themselves this way."""

    def append(self, value: Any) -> None:
        """List-like classes fill themselves this way."""

    def extend(self, values: Any) -> None:
        """The same for many values."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Never imports anything."""
        return _SAFE.get((module, name), _Inert)

    def persistent_load(self, pid: Any) -> Any:
        """References outside of the file lead nowhere."""
        return None


def read_steps(files: Sequence[Path]) -> Iterator[Record]:
    """Of each `step_<n>.pkl.gz` in order its action, its observation, and whether it ended; or why it cannot be read.

    The keys of the table are those that `_wanted` hands on.
    """
    left = list(files)
    while left:
        answered = 0
        for answer in _answers(left):
            answered += 1
            yield answer
        left = left[answered:]
        if left:  # it has ended the process
            yield TOO_LARGE
            left = left[1:]


def _answers(files: Sequence[Path]) -> Iterator[Record]:
    """What the process says of the files before it ends, by itself or by a limit."""
    import subprocess

    command = [sys.executable, "-I", "-S", __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps([str(file.absolute()) for file in files]).encode())
            process.stdin.close()
            while line := process.stdout.readline(LARGEST + 2):
                if not line.endswith(b"\n"):
                    return
                answer: Record = json.loads(line)
                yield answer
        finally:
            process.kill()


def _main(files: Iterable[str]) -> None:
    import resource

    with suppress(ValueError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    for file in files:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        used = int(usage.ru_utime + usage.ru_stime) + 1
        # The kernel ends the process that goes beyond.
        resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, most))
        sys.stdout.write(f"{_answer(file)}\n")
        sys.stdout.flush()


def _answer(file: str) -> str:
    try:
        with gzip.open(file) as opened:
            data = opened.read(LARGEST + 1)
        if len(data) > LARGEST:
            return json.dumps(TOO_LARGE)
        text = json.dumps(_wanted(_Reader(io.BytesIO(data)).load()))
        return text if len(text) <= LARGEST else json.dumps(TOO_LARGE)
    except MemoryError:
        return json.dumps(TOO_LARGE)
    # Whatever is in a stranger's file, it is the file that is at fault.
    except Exception:
        return json.dumps(DAMAGED)


def _wanted(step: Any) -> dict[str, Any]:
    obs = getattr(step, "obs", None)
    obs = obs if isinstance(obs, dict) else {}
    tree = obs.get("axtree_object")
    return {
        **{key: obs[key] for key in ("url", "goal", "axtree_txt") if isinstance(obs.get(key), str)},
        "nodes": _plain(tree.get("nodes")) if isinstance(tree, dict) else None,
        "action": step.action if isinstance(getattr(step, "action", None), str) else None,
        "terminated": getattr(step, "terminated", False) is True,
        "truncated": getattr(step, "truncated", False) is True,
        "reward": _number(getattr(step, "reward", 0.0)),
        "think": _thought(getattr(step, "agent_info", None)),
        "picture": _picture(obs.get("screenshot")),
    }


def _picture(array: Any) -> str | None:
    """An array of NumPy of height x width x 3 or 4 bytes as a PNG in base64; None for anything else."""
    state = getattr(array, "state", None)
    if not (isinstance(state, tuple) and len(state) == 5):
        return None
    _, shape, kind, by_column, data = state
    is_bytes = getattr(kind, "args", ("",))[:1] in (("u1",), ("uint8",), ("|u1",))
    if not (is_bytes and by_column is False and isinstance(data, bytes) and isinstance(shape, tuple)):
        return None
    if len(shape) != 3 or not all(type(side) is int and side > 0 for side in shape) or shape[2] not in (3, 4):
        return None
    height, width, channels = shape
    if len(data) != height * width * channels or height * width > MOST_PIXELS:
        return None
    line = width * channels
    rows = b"".join(b"\0" + data[at : at + line] for at in range(0, len(data), line))
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in parts)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


def _number(value: Any) -> float | None:
    """A reward; 0 where there is none, None where it is no number that is finite."""
    if value is None:
        return 0.0
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else None


def _thought(info: Any) -> str:
    """What the agent says that it thought: a key of a dict, or an attribute of a record."""
    table = info if isinstance(info, dict) else getattr(info, "__dict__", {})
    thought = table.get("think")
    return thought if isinstance(thought, str) else ""


def _plain(value: Any) -> Any:
    """Containers, numbers and text as JSON has them; anything else is null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if isinstance(key, str | int)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else None


if __name__ == "__main__":
    _main(json.load(sys.stdin))
