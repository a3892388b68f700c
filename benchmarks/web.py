"""Speed and exactness of the web layer, against libwebarena and BrowserGym on the same pages in the same run.

    python benchmarks/web.py [observation] [miniwob] [delta] [memory] [fuzz] [--episodes 500] [--strings 1000000]

    python benchmarks/web.py observation miniwob --against FOLDER [--rounds 5]

Without names all of them run. Prints one JSON object a measurement. What is compared with another package needs its
environment (`dynaweb env install libwebarena`, `dynaweb env install browsergym`), and `miniwob` the pages that the
latter holds; what is missing is said on standard error and left out. `--against` runs the measurements alternately with
this checkout and with the one in another folder, and prints for each number the two medians and their ratio: where
other work makes the clock useless, processor time still tells.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing import fuzz
from served import product_rows, report, serving, serving_files

from dynaweb.runs import sidecar
from dynaweb.types import Action, Node, Observation
from dynaweb.web.chromium.install import find
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.delta import apply, diff, parse, to_text
from dynaweb.web.page.text import render

ROOT = Path(__file__).resolve().parents[1]
START = """(() => {
  Math.seedrandom('%d'); core.EPISODE_MAX_TIME = 1e8; core.startEpisodeReal(); return core.getUtterance();
})()"""


def missing(what: str) -> None:
    """Say what could not be measured."""
    sys.stderr.write(f"{what}: not compared, run `dynaweb env install {what}` first\n")


# --- measurements ---


async def timed(work: Callable[[], Awaitable[Any]], repeat: int) -> list[float]:
    """Seconds of each run after one to warm up."""
    seconds = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


async def observation(options: argparse.Namespace) -> None:
    """Tree, boxes and text of pages of three sizes, whole and as the window shows them; libwebarena on the largest."""
    sizes = {"small": 22, "large": 266, "rows": 1000}
    # A script of its own makes the driver read boxes and listeners of the whole page too.
    script = "<script>document.title = 'Shop'</script>"
    pages = {f"/{name}": product_rows(count) + script for name, count in sizes.items()}
    with serving(ROOT / "docs", pages) as base:
        ours: dict[str, float] = {}
        for region in ("page", "viewport"):
            async with BrowserPool(view="webarena", region=region, max_nodes=100_000) as pool:  # type: ignore[arg-type]
                session = await pool.session()
                await session.reset()
                for name in sizes:
                    await session.goto(f"{base}/{name}")
                    tree = await _tab(session).send("Accessibility.getFullAXTree")
                    repeat, cpu = 15 if name == "small" else 5, _cpu()
                    seconds = await timed(lambda s=session: _look(s), repeat)
                    ours[name], cpu = statistics.median(seconds), (_cpu() - cpu) / (repeat + 1)
                    report(
                        f"observation {name}, {region}", nodes=len(tree["nodes"]), median_ms=1e3 * ours[name],
                        cpu_ms=1e3 * cpu,
                    )  # fmt: skip
        if not options.alone:
            _against_libwebarena(f"{base}/rows", ours["rows"])


async def _look(session: ChromiumSession) -> str:
    return render(await session.observe(), "webarena")


def _tab(session: ChromiumSession) -> Any:
    opened = session._open
    assert opened is not None
    return opened.current


def _against_libwebarena(url: str, ours: float) -> None:
    python = sidecar._python(sidecar.root() / "libwebarena")
    if not python.exists():
        missing("libwebarena")
        return
    request = {
        "package": "webarena", "browser": str(find().path), "viewport_only": True, "plain": True,
        "hidden_roles": [], "properties": [], "pages": [{"url": url}],
    }  # fmt: skip
    script = ROOT / "tests" / "reference" / "print_pages.py"
    done = subprocess.run([python, script], input=json.dumps(request), capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout)["seconds"]
    report("observation of 1,000 rows against libwebarena", ours_s=ours, theirs_s=theirs, ratio=theirs / ours)


def _miniwob() -> Path | None:
    return next(sidecar.root().glob("browsergym/lib/python*/site-packages/miniwob/html"), None)


async def miniwob(options: argparse.Namespace) -> None:
    """Episodes of `click-button` (reset, two observations, a real click) and BrowserGym's reset and step."""
    folder = _miniwob()
    if folder is None:
        missing("browsergym")
        return
    with serving_files(folder) as base:
        url = f"{base}/miniwob/click-button.html"
        alone = await _episodes(url, workers=1, count=30)
        reset, step = statistics.median(alone.resets), statistics.median(alone.steps)
        report("miniwob click-button", reset_ms=1e3 * reset, step_ms=1e3 * step, commands=alone.commands / 30)
        for workers in (1, 2, 4):
            # A third of an episode is waiting for the page to rest, so more sessions than cores are worth while.
            played = await _episodes(url, workers=workers, count=80)
            report(
                "miniwob episodes", side_by_side=workers, per_second=80 / played.seconds,
                cpu_ms_per_episode=1e3 * played.cpu / 80, cores_used=played.cpu / played.seconds,
                load_of_machine=os.getloadavg()[0],
            )  # fmt: skip
        if not options.alone:
            _against_browsergym(base, reset, step)


@dataclass
class Played:
    """Episodes side by side, from the first reset of a running browser to the last reward; times in seconds."""

    resets: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0
    """Processor time of driver and browser, without the server of the pages."""
    commands: int = 0
    """DevTools commands that were sent."""


async def _episodes(url: str, *, workers: int, count: int) -> Played:
    """Plays `count` episodes; every click is checked by the page's own reward."""
    played = Played()
    # The scripts of this task do everything at once, so a short quiet window is enough; the reward proves each click.
    async with BrowserPool(workers=workers, keep_cache=True, quiet=0.02) as pool:
        sessions = [await pool.session() for _ in range(workers)]
        for session in sessions:
            await session.reset()
            await _episode(session, url, 0, Played())
        counters = [Counting(_tab(session)) for session in sessions]
        start, cpu = time.perf_counter(), _cpu()

        async def play(place: int) -> None:
            for seed in range(place, count, workers):
                await _episode(sessions[place], url, seed, played)

        await asyncio.gather(*map(play, range(workers)))
        played.seconds, played.cpu = time.perf_counter() - start, _cpu() - cpu
        played.commands = sum(counter.sent for counter in counters)
    return played


async def _episode(session: ChromiumSession, url: str, seed: int, played: Played) -> None:
    begun = time.perf_counter()
    page, goal = await _start(session, url, seed)
    clicked = time.perf_counter()
    wanted = str(goal).split('"')[1]
    number = next(node.id for node in page.nodes if node.role == "button" and node.name == wanted)
    assert await session.act(Action("click", number)) == ""
    await session.observe()
    played.resets.append(clicked - begun)
    played.steps.append(time.perf_counter() - clicked)
    assert await session.evaluate("last", "WOB_RAW_REWARD_GLOBAL") == 1


class Counting:
    """Counts the DevTools commands of a tab from now on."""

    def __init__(self, tab: Any) -> None:
        self.sent = 0
        self._send, tab._sender = tab._sender, self._counted

    def _counted(self, method: str, parameters: dict[str, Any]) -> Awaitable[Any]:
        self.sent += 1
        answer: Awaitable[Any] = self._send(method, parameters)
        return answer


def _cpu() -> float:
    """Processor seconds of this process and of what it started, without servers of pages."""
    import psutil

    this = psutil.Process()
    started = (each for each in this.children(recursive=True) if "http.server" not in each.cmdline())
    return sum(each.cpu_times().user + each.cpu_times().system for each in (this, *started))


async def _start(session: ChromiumSession, url: str, seed: int) -> tuple[Observation, Any]:
    """The first page of an episode and its goal."""
    await session.reset()
    await session.goto(url)
    goal = await session.evaluate("last", START % seed)
    return await session.observe(), goal


def _against_browsergym(base: str, reset: float, step: float) -> None:
    python = sidecar._python(sidecar.root() / "browsergym")
    command = [python, ROOT / "benchmarks" / "browsergym_steps.py", find().path, "5"]
    environment = {**os.environ, "MINIWOB_URL": f"{base}/miniwob/"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.stderr.write(f"browsergym did not run: {done.stderr[-600:]}\n")
        return
    theirs = {key: statistics.median(value) for key, value in json.loads(done.stdout.splitlines()[-1]).items()}
    report(
        "miniwob click-button against BrowserGym", their_reset_s=theirs["reset"], their_step_s=theirs["step"],
        reset_ratio=theirs["reset"] / reset, step_ratio=theirs["step"] / step,
    )  # fmt: skip


async def delta(_: argparse.Namespace) -> None:
    """Exactness and length on random walks over MiniWoB++ pages; time of `diff` at two sizes."""
    for size in (300, 4000):
        before = Observation("http://a/", tuple(Node(i, "link", f"Name {i % 97} {i}") for i in range(1, size + 1)))
        nodes = [node for node in before.nodes if node.id % 7] + [Node(0, "text", f"New {i}") for i in range(size // 9)]
        after = Observation("http://a/", tuple(nodes))
        seconds = sorted(_time_of(lambda b=before, a=after: diff(b, a)) for _ in range(9))
        report(f"diff of {size} nodes", median_ms=1e3 * statistics.median(seconds))
    pairs = [*await _walks_of_sites(), *await _walks_of_miniwob()]
    exact = sum(_rebuilt(before, after) == after for before, after in pairs)
    ratios = [
        len(to_text(diff(before, after))) / len(render(after)) for before, after in pairs if before.url == after.url
    ]
    report(
        "delta of real transitions", transitions=len(pairs), exact=exact / len(pairs), same_page=len(ratios),
        median_length_of_page=statistics.median(ratios),
    )  # fmt: skip


def _rebuilt(before: Observation, after: Observation) -> Observation:
    return apply(before, parse(to_text(diff(before, after)), before, strict=True))


def _time_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


Pairs = list[tuple[Observation, Observation]]


async def _walks_of_sites(episodes: int = 40, steps: int = 10) -> Pairs:
    from dynaweb.web.static.session import StaticSession
    from dynaweb_env_sites.server import create_app
    from dynaweb_env_sites.world_store import HEADER

    app = create_app()
    session = StaticSession(app)
    found: Pairs = []
    for episode in range(episodes):
        app.store.put("1", app.store.world(episode, "pretrain"))
        await session.reset(headers={HEADER: "1"})
        await session.goto(f"http://{('shop', 'forum', 'tracker')[episode % 3]}.localhost/")
        found += await _walk(session, await session.observe(), random.Random(episode), steps)
    return found


async def _walks_of_miniwob(steps: int = 5) -> Pairs:
    folder = _miniwob()
    if folder is None:
        missing("browsergym")
        return []
    found: Pairs = []
    with serving_files(folder) as base:
        async with BrowserPool() as pool:
            session = await pool.session()
            for place, task in enumerate(sorted(folder.glob("miniwob/*.html"))[::3]):
                page, _ = await _start(session, f"{base}/miniwob/{task.name}", place)
                found += await _walk(session, page, random.Random(place), steps)
    return found


async def _walk(session: Any, page: Observation, chance: random.Random, steps: int) -> Pairs:
    found: Pairs = []
    for _ in range(steps):
        await session.act(_choose(page, chance))
        after = await session.observe()
        found.append((page, after))
        page = after
    return found


def _choose(page: Observation, chance: random.Random) -> Action:
    nodes = [node for node in page.nodes if node.role not in ("text", "heading", "status")]
    if not nodes or chance.random() < 0.1:
        return Action("go_back")
    node = chance.choice(nodes)
    if node.role == "textbox":
        return Action("type", node.id, chance.choice(["a", "12", "it's"]), chance.random() < 0.3)
    options = dict(node.props).get("options")
    return Action("select", node.id, chance.choice(options.split("|"))) if options else Action("click", node.id)


async def memory(options: argparse.Namespace) -> None:
    """Resident memory of driver and browser over many episodes of one pool, in five parts."""
    import psutil

    pages = {"/": product_rows(50) + "<script>localStorage.a = 'x'.repeat(1e4)</script>"}
    with serving(ROOT / "docs", pages) as base:
        async with BrowserPool(recycle=200) as pool:
            session = await pool.session()
            sizes: list[float] = []
            for episode in range(options.episodes):
                await session.reset()
                await session.goto(f"{base}/")
                page = await session.observe()
                await session.act(Action("click", page.nodes[-1].id))
                if episode >= 20:
                    sizes.append(_memory(psutil.Process()))
            parts = [statistics.median(part) for part in _split(sizes, 5)]
            report("memory", episodes=options.episodes, launches=pool.launches, mib=[round(part) for part in parts])


def _split(values: Sequence[float], count: int) -> list[Sequence[float]]:
    size = max(len(values) // count, 1)
    return [values[start : start + size] for start in range(0, size * count, size)]


def _memory(process: Any) -> float:
    total = 0
    for each in (process, *process.children(recursive=True)):
        try:
            total += each.memory_info().rss
        except Exception:
            continue
    return total / 2**20


def against(folder: Path, names: Sequence[str], rounds: int) -> None:
    """Measure this checkout and another one alternately, each time in a process of its own."""
    numbers: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for round_ in range(rounds):
        for place, checkout in enumerate((ROOT, folder)):
            plugins = sorted(str(path) for path in checkout.glob("plugins/*"))
            variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), *plugins])}
            command = [sys.executable, str(Path(__file__).resolve()), "--alone", *names]
            done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=ROOT / "benchmarks")
            if done.returncode:
                raise SystemExit(f"{checkout}: {done.stderr[-800:]}")
            for line in map(json.loads, done.stdout.splitlines()):
                what = f"{line.pop('what')} {line.pop('side_by_side', '')}".strip()
                for key, value in line.items():
                    numbers.setdefault(what, {}).setdefault(key, ([], []))[place].append(value)
        sys.stderr.write(f"round {round_ + 1} of {rounds}\n")
    for what, values in numbers.items():
        for key, (ours, theirs) in values.items():
            if key != "load_of_machine" and ours and theirs:
                one, other = statistics.median(ours), statistics.median(theirs)
                report(f"{what}: {key}", this=one, other=other, ratio=one / other if other else 0.0, rounds=len(ours))


MEASUREMENTS = {"observation": observation, "miniwob": miniwob, "delta": delta, "memory": memory, "fuzz": fuzz}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--strings", type=int, default=1_000_000)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="how often each checkout is measured with --against")
    parser.add_argument("--alone", action="store_true", help="leave out other packages")
    options = parser.parse_args()
    unknown = set(options.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; choose from {', '.join(MEASUREMENTS)}")
    if options.against is not None:
        against(options.against.resolve(), options.names or ["observation", "miniwob"], options.rounds)
        return
    for name in options.names or MEASUREMENTS:
        asyncio.run(MEASUREMENTS[name](options))


if __name__ == "__main__":
    main()
