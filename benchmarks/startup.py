"""How long every command takes to answer `--help`: python benchmarks/startup.py [REPEATS]

Prints, for each command, the median wall-clock time of REPEATS processes (default 7) and the number of imported
modules; beside them the time of an empty Python process, measured in between, so that the load of the machine shows.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

PROMISE = 0.3
"""Seconds on a quiet machine."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and group, hidden ones left out."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from commands(inner, (*path, name))


def timed(arguments: list[str]) -> float:
    """Seconds of one process."""
    start = time.perf_counter()
    subprocess.run(arguments, capture_output=True, check=True)
    return time.perf_counter() - start


def modules(arguments: list[str]) -> int:
    """Modules that a command has imported when it ends."""
    code = (
        "import sys\nfrom dynaweb.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n    print(len(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1])


def main() -> None:
    """Measure and print."""
    import typer

    from dynaweb.cli.app import tree

    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print(f"{'command'.ljust(36)} median s  empty Python  modules")
    slow = []
    for path in commands(typer.main.get_command(tree())):
        arguments = [*path, "--help"]
        times, empty = [], []
        for _ in range(repeats):
            times.append(timed([sys.executable, "-m", "dynaweb", *arguments]))
            empty.append(timed([sys.executable, "-c", ""]))
        median, base = statistics.median(times), statistics.median(empty)
        print(f"{' '.join(('dynaweb', *path)).ljust(36)} {median:8.3f}  {base:12.3f}  {modules(arguments):7d}")
        if median > PROMISE:
            slow.append(" ".join(path))
    print(f"over {PROMISE} s: {', '.join(slow) or 'none'}")


if __name__ == "__main__":
    main()
