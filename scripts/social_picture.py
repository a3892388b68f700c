"""Makes docs/images/social.png: a page that a world model dreamed, beside the page that really followed.

    dynaweb run --set env.task_settings.driver=static --out runs/picture
    python scripts/social_picture.py runs/picture

Dreams of the run are looked at one after the other: the first action is done again in the real environment, in
Chromium. The dream that is shown has a page that the world model wrote, most of it right and some of it wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import tempfile
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from dynaweb.data.store import TrajectoryStore
from dynaweb.plugin.registry import current
from dynaweb.protocols import EnvironmentContext
from dynaweb.types import Action, Observation, Step, Trajectory
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.page.text import render

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "images" / "social.png"
WIDTH, HEIGHT = 1280, 640
LINES = 17
"""Lines of a page that fit into its half."""
TRIED = 60
"""Dreams that are done again, at most."""


@dataclass(frozen=True)
class Pair:
    """A step that a world model dreamed, and what really followed."""

    goal: str
    before: Observation
    action: Action
    dream: Observation
    real: Observation
    picture: bytes

    @property
    def marks(self) -> list[str]:
        """For each element of the dream: `kept` from the page before, `right` (it is on the real page), or `wrong`."""
        before, real = (Counter((node.role, node.name) for node in page.nodes) for page in (self.before, self.real))
        found = []
        for node in self.dream.nodes:
            key = (node.role, node.name)
            right, kept = real[key] > 0, before[key] > 0
            real[key] -= 1
            before[key] -= 1
            found.append(("kept" if kept else "right") if right else "wrong")
        return found

    @property
    def worth(self) -> float:
        """How much there is to see: many new elements that are right, and a few that are wrong."""
        counts = Counter(self.marks)
        shown = self.marks[:LINES]
        if not 0 < shown.count("wrong") <= counts["right"] or len(self.dream.nodes) > LINES + 12:
            return 0.0
        # Letters that every reader knows are read faster.
        plain = 3 * " ".join(node.name for node in self.dream.nodes).isascii()
        return counts["right"] + min(3, shown.count("wrong")) + plain - abs(len(self.dream.nodes) - LINES) / 4


def dreamed(folder: Path) -> Iterator[tuple[Trajectory, Step, Observation]]:
    """First steps of a run's dreams whose next page a world model wrote, one for each page and action."""
    seen = set[tuple[str, str, str]]()
    for dream in TrajectoryStore(folder / "trajectories" / "dreams.jsonl.gz"):
        if dream.source != "dream" or not dream.steps:
            continue
        step, after = dream.steps[0], dream.steps[1].observation if len(dream.steps) > 1 else dream.final
        action = step.action
        if action is None or action.kind != "click" or not step.facts.imagined or after is None or step.error:
            continue
        key = (dream.task.id, action.target_role, action.target_name)
        if key not in seen and after.nodes != step.observation.nodes:
            seen.add(key)
            yield dream, step, after


async def pairs(folder: Path) -> list[Pair]:
    """Dreamed steps beside the real ones. Needs Chromium."""
    source = current().create("env", "sites", {"driver": "chromium"}, EnvironmentContext())
    found = []
    environment = source.environment()
    try:
        for dream, step, after in list(dreamed(folder))[:TRIED]:
            page = await environment.reset(dream.task, 0)
            wanted = step.action
            assert wanted is not None
            target = next((n for n in page.nodes if (n.role, n.name) == (wanted.target_role, wanted.target_name)), None)
            if target is None:
                continue
            result = await environment.step(replace(wanted, target=target.id))
            picture = await photographed(environment.session)
            found.append(Pair(dream.task.intent, page, wanted, after, result.observation, picture))
    finally:
        await environment.close()
        await source.close()
    return found


async def photographed(session: ChromiumSession) -> bytes:
    """The page in a small window, so that it can be read in a small picture."""
    tab = await session._context().present()
    await tab.page.set_viewport_size({"width": 712, "height": 575})
    picture = await tab.page.screenshot(scale="css")
    await tab.page.set_viewport_size({"width": 1280, "height": 720})
    return picture


def drawn(pair: Pair) -> str:
    """The picture as a page."""
    logo = b64encode((ROOT / "docs" / "assets" / "logo.svg").read_bytes()).decode()
    lines = render(replace(pair.dream, title="", tabs=(), notice="")).splitlines()[1:]
    marks = pair.marks
    shown = [
        f'<li class="{mark}">{html.escape(line.strip())}</li>'
        for line, mark in list(zip(lines, marks, strict=False))[:LINES]
    ]
    if len(marks) > LINES:
        shown.append(f'<li class="more">and {len(marks) - LINES} more elements</li>')
    counts = Counter(marks)
    return Template((ROOT / "docs" / "theme" / "social.html").read_text(encoding="utf-8")).substitute(
        logo=logo,
        goal=html.escape(pair.goal),
        action=html.escape(f"{pair.action.kind} '{pair.action.target_name}'"),
        lines="".join(shown),
        address=html.escape(pair.real.url.partition("://")[2].partition("?")[0]),
        picture=b64encode(pair.picture).decode(),
        kept=counts["kept"],
        right=counts["right"],
        wrong=counts["wrong"],
    )


def main() -> None:
    """Look for a pair, and write the picture of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run that dreamed of the embedded sites")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    found = asyncio.run(pairs(given.run))
    best = max(found, key=lambda pair: pair.worth, default=None)
    if best is None or not best.worth:
        raise SystemExit(f"no dream of {given.run} is partly right and partly wrong ({len(found)} were looked at)")
    from playwright.sync_api import sync_playwright

    from dynaweb.web.chromium.install import find

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=str(find().path), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        path = Path(scratch, "social.html")
        path.write_text(drawn(best), encoding="utf-8")
        page.goto(path.as_uri())
        page.screenshot(path=given.out)
        browser.close()
    print(f"{given.out}: {best.goal} ({dict(Counter(best.marks))})")


if __name__ == "__main__":
    main()
