"""How far the pages that `examples/dynaweb-wm-drawing` draws are from those of a browser, on the embedded sites.

    python benchmarks/drawing.py --tasks 30

Scripted experts walk over unseen sites in Chromium. Each page is drawn from its tree, and compared with what Chromium's
window shows of it:

    layout overlap   intersection over union of the boxes of an element, here and there, mean over those in both windows
    in both windows  share of the elements in either window that are in both
    text overlap     F1 of the words that the two windows show; one with letters that the font lacks is not shown

A page counts once. Intervals are 95 %, over the sites that pages are of: pages of one site look alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "dynaweb-wm-drawing"))

from dynaweb_wm_drawing.drawing import drawable, layout

from dynaweb.config.sections import ObservationSettings
from dynaweb.data.images import ImageStore
from dynaweb.protocols import EnvironmentContext
from dynaweb.stats import Estimate, mean
from dynaweb.types import Observation
from dynaweb.web.boxes import Box
from dynaweb_env_sites import SitesConfig
from dynaweb_env_sites.env import SitesSource

WINDOW = (1280, 720)
SEEING = ObservationSettings(modality="both", marks=True, width=WINDOW[0], height=WINDOW[1])


@dataclass(frozen=True, slots=True)
class Page:
    """One page, compared."""

    site: str
    overlap: float | None
    """None where no element is in both windows."""
    both: float
    words: float


def overlap(one: Box, other: Box) -> float:
    """Intersection over union."""
    width = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
    height = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
    common = max(0.0, width) * max(0.0, height)
    return common / (one.width * one.height + other.width * other.height - common)


def words(page: Observation, visible: set[int]) -> Counter[str]:
    """The words of the elements that a window shows."""
    texts = (f"{node.name} {node.value or ''}" for node in page.nodes if node.id in visible)
    return Counter(word for text in texts for word in text.split())


def compared(site: str, page: Observation, real: dict[int, Box]) -> Page:
    """A page in the browser's window beside itself as it is drawn."""
    there = {number: box for number, box in real.items() if box.meets(*WINDOW)}
    here = {one.node.id: one.box for one in layout(page, WINDOW[0]) if one.box.meets(*WINDOW)}
    common = there.keys() & here.keys()
    overlaps = [overlap(there[number], here[number]) for number in common]
    first, second = words(page, set(there)), words(page, set(here))
    # A word with boxes for letters cannot be read.
    second = Counter({word: count for word, count in second.items() if all(map(drawable, word))})
    total = first.total() + second.total()
    return Page(
        site,
        sum(overlaps) / len(overlaps) if overlaps else None,
        len(common) / max(1, len(there.keys() | here.keys())),
        2 * (first & second).total() / total if total else 1.0,
    )


async def pages(tasks: int, seed: int) -> AsyncIterator[Page]:
    """The distinct pages that experts see on unseen sites."""
    with tempfile.TemporaryDirectory() as folder:
        context = EnvironmentContext(observation=SEEING, images=ImageStore(Path(folder)))
        source = SitesSource(SitesConfig(), context)
        environment, seen = source.environment(), set[Observation]()
        try:
            for task in source.tasks("test", count=tasks, seed=seed):
                expert = source.expert(task)
                page, done = await environment.reset(task, 0), False
                while not done:
                    if page not in seen:
                        seen.add(page)
                        yield compared(task.site_key, page, environment.session.boxes())  # type: ignore[attr-defined]
                    result = await environment.step(expert.act(page))
                    page, done = result.observation, result.done
        finally:
            await environment.close()
            await source.close()


def by_site(rows: list[Page], name: str) -> Estimate:
    """The mean over sites of the means of their pages."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if (value := getattr(row, name)) is not None:
            groups[row.site].append(value)
    return mean([sum(values) / len(values) for values in groups.values()])


async def measured(tasks: int, seed: int) -> list[Page]:
    """All of them."""
    return [page async for page in pages(tasks, seed)]


def main() -> None:
    """Print a table, and with `--json` the pages one by one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(measured(arguments.tasks, arguments.seed))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    names = {"overlap": "layout overlap", "both": "in both windows", "words": "text overlap"}
    print(f"{len(rows)} pages of {len({row.site for row in rows})} unseen sites, window {WINDOW[0]} x {WINDOW[1]}")
    for name, label in names.items():
        print(f"{label:<16} {by_site(rows, name)}")


if __name__ == "__main__":
    main()
