"""Time and memory for each picture of a page: python benchmarks/pixels.py --help

Pages of the embedded shop are read in Chromium as text, with a picture, and with a picture and marks; then pictures are
drawn on, stored, stored again and read. A line of JSON each: milliseconds (median and 95 % interval of the mean) and
bytes. `peak_mib` is how far the memory of this process grew, `browser_mib` is that of the browser's processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from dynaweb.data.images import ImageStore
from dynaweb.stats import mean
from dynaweb.types import Observation
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.pictures import Pictures, drawn, marked
from dynaweb_env_sites.server import SitesServer, create_app
from dynaweb_env_sites.tasks import sites
from dynaweb_env_sites.world_store import WorldStore

PATHS = ("/", "/category/1", "/category/2", "/cart")


def report(what: str, milliseconds: list[float], **more: Any) -> None:
    """One line."""
    average = mean(milliseconds)
    interval = None if average.low is None or average.high is None else [round(average.low, 2), round(average.high, 2)]
    numbers = {"median_ms": round(statistics.median(milliseconds), 2), "mean_ms": round(average.value or 0.0, 2)}
    line = {"what": what, "n": len(milliseconds), **numbers, "interval_95": interval, **more}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def peak_mib() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def browser_mib() -> float:
    """Resident size of the processes below this one."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


async def timed(call: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """Milliseconds, and what came of it."""
    start = time.perf_counter()
    value = await call()
    return 1000 * (time.perf_counter() - start), value


async def observed(server: SitesServer, store: ImageStore, arguments: argparse.Namespace) -> list[tuple[bytes, Any]]:
    """Observations of each kind; returns plain pictures with the boxes of their marks."""
    window = (arguments.width, arguments.height)
    kinds = {
        "text": None,
        "picture": Pictures(store, window, arguments.scale),
        "picture with marks": Pictures(store, window, arguments.scale, marks=True),
    }
    address = next(real for real, name in server.urls.origins.items() if name == "http://shop.localhost")
    plain: list[tuple[bytes, Any]] = []
    for what, pictures in kinds.items():
        async with BrowserPool(pictures=pictures) as pool:
            session = await pool.session()
            await session.reset()
            times, sizes = [], []
            for number in range(arguments.pages):
                await session.goto(address + PATHS[number % len(PATHS)])
                elapsed, page = await timed(session.observe)
                times.append(elapsed)
                assert isinstance(page, Observation)
                if page.screenshot is not None:
                    png = store.get(page.screenshot.image)
                    sizes.append(len(png))
                    if what == "picture with marks":
                        boxes = marked(page.nodes, session.boxes(), window)
                        plain.append((await session.screenshot(), boxes))
            more = {"bytes": round(statistics.mean(sizes))} if sizes else {}
            report(f"observe: {what}", times, **more, peak_mib=round(peak_mib()), browser_mib=round(browser_mib()))
            await session.close()
    return plain


def stored(plain: list[tuple[bytes, Any]], store: ImageStore, scale: float) -> None:
    """What drawing, storing and reading take, without a browser."""
    pictures: list[bytes] = []
    times: dict[str, list[float]] = {"draw marks": [], "store": [], "store again": [], "read": []}

    def measure(what: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = call()
        times[what].append(1000 * (time.perf_counter() - start))
        return value

    for png, boxes in plain:
        pictures.append(measure("draw marks", lambda png=png, boxes=boxes: drawn(png, boxes, min(1.0, scale))))
    for png in random.Random(0).sample(pictures, len(pictures)):
        image = measure("store", lambda png=png: store.put(png))
        measure("store again", lambda png=png: store.put(png))
        measure("read", lambda image=image: store.get(image))
    for what, values in times.items():
        report(what, values, bytes=round(statistics.mean(map(len, pictures))), peak_mib=round(peak_mib()))


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=40)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, SitesServer(create_app(WorldStore(sites()))) as server:
        plain = asyncio.run(observed(server, ImageStore(Path(name) / "seen"), arguments))
        stored(plain, ImageStore(Path(name) / "stored"), arguments.scale)


if __name__ == "__main__":
    main()
