"""A transition store of a million records: python benchmarks/store.py --help

Writes transitions with pages that come back and pages that are new, reads them all, then some at random, and prints
the rate of each and how far the memory of the process grew. Memory must not grow with the number of records, once the
writer knows `KNOWN_PAGES` pages: it is printed at a tenth, at the half and at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dynaweb.data.store import TransitionStore
from dynaweb.types import Action, Node, Observation, Transition


def pages(rng: random.Random) -> Iterator[Observation]:
    """An endless walk: one page in four was there before."""
    old: list[Observation] = []
    number = 0
    while True:
        if old and rng.random() < 0.25:
            yield rng.choice(old)
            continue
        nodes = tuple(Node(at, "link", f"Item {number} {at}") for at in range(1, 21))
        page = Observation(f"http://shop.localhost/{number}", nodes)
        old = [*old[-63:], page]
        number += 1
        yield page


def transitions(count: int, seed: int = 0) -> Iterator[Transition]:
    """`count` transitions along the walk."""
    walk = pages(random.Random(seed))
    before = next(walk)
    for number in range(count):
        after = next(walk)
        yield Transition(before, Action("click", 1, target_role="link"), after, f"task {number // 6}", "real")
        before = after


def memory_mib() -> float:
    """Largest resident size so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def report(**line: Any) -> None:
    """One JSON line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Write, read, pick."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--picks", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = TransitionStore(Path(folder) / "x.jsonl.gz")
        jobs: dict[str, Callable[[], int]] = {
            "write": lambda: store.extend(marked(transitions(given.count), given.count, "written")),
            "read": lambda: read(store.path),
        }
        for what, job in jobs.items():
            started, marks = time.perf_counter(), [memory_mib()]
            count = job()
            seconds = time.perf_counter() - started
            marks.append(memory_mib())
            report(what=what, records=count, per_second=round(count / seconds), memory_mib=[round(m, 1) for m in marks])
        opened = TransitionStore(store.path)
        rng, started = random.Random(1), time.perf_counter()
        for _ in range(given.picks):
            opened[rng.randrange(len(opened))]
        report(what="pick", records=given.picks, per_second=round(given.picks / (time.perf_counter() - started)))
        report(what="size", bytes_per_record=round(store.path.stat().st_size / given.count, 1))


def read(path: Path) -> int:
    """Every record once."""
    opened = TransitionStore(path)
    return sum(1 for _ in marked(opened, len(opened), "read"))


def marked(records: Iterable[Transition], count: int, what: str) -> Iterator[Transition]:
    """The records; tells the memory at a tenth of the way and at the half."""
    marks = {count // 10: "a tenth", count // 2: "half"}
    for number, record in enumerate(records, start=1):
        if number in marks:
            report(what=f"{marks[number]} {what}", memory_mib=round(memory_mib(), 1))
        yield record


if __name__ == "__main__":
    main()
