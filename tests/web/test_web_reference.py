"""The texts of the webarena and browsergym dialects against the packages that agents of those benchmarks read.

Each package runs in its own environment (`dynaweb env install NAME`) on the same pages in the same browser. Numbers and
what the modules of the formats and `filtered_view` list as meant differences are taken out; the rest is equal.
"""

from __future__ import annotations

import asyncio
import functools
import http.server
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from folders import TESTS
from reference_pages import INNER, MINIWOB, MINIWOB_START, PAGES
from web_pages import serving

from dynaweb.runs import sidecar
from dynaweb.types import Node, Observation
from dynaweb.web.chromium.install import find
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.page.text import render
from dynaweb.web.page.tree import VERBOSE

pytestmark = pytest.mark.asyncio

# Before any test points the cache elsewhere.
ENVIRONMENTS = sidecar.root()
NAMES = {"webarena": "libwebarena", "browsergym": "browsergym"}
HIDDEN = ["InlineTextBox", "ListMarker", "LineBreak"]
PICKERS = ("Date", "DateTime", "InputTime", "ColorWell")


def python_of(package: str) -> Path:
    """The interpreter of a package's environment; the test is skipped where there is none."""
    python = sidecar._python(ENVIRONMENTS / NAMES[package])
    if not python.exists():
        pytest.skip(f"needs: dynaweb env install {NAMES[package]}")
    return python


@contextmanager
def miniwob() -> Iterator[str]:
    """A server of the MiniWoB++ pages that the browsergym environment holds; its address, or '' without them."""
    folder = next(ENVIRONMENTS.glob("browsergym/lib/python*/site-packages/miniwob/html"), None)
    if folder is None:
        yield ""
        return
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/miniwob/"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        return


def printed(package: str, pages: list[dict[str, str]]) -> list[str]:
    """What the package prints for the pages."""
    request = {
        "package": package,
        "browser": str(find().path),
        "hidden_roles": HIDDEN,
        "properties": sorted(VERBOSE | {"focusable", "editable"}),
        "pages": pages,
    }
    script = TESTS / "reference" / "print_pages.py"
    done = subprocess.run(
        [str(python_of(package)), str(script)], input=json.dumps(request), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line)["text"] for line in done.stdout.splitlines()]


async def observed(view: str, pages: list[dict[str, str]]) -> list[Observation]:
    """What our driver shows for the pages."""
    observations = []
    async with BrowserPool(view=view, max_nodes=100_000) as pool:
        session = await pool.session()
        for page in pages:
            await session.reset()
            await session.goto(page["url"])
            if page.get("script"):
                await session.evaluate("last", page["script"])
            observations.append(await session.observe())
    return observations


_NAMELESS_IMAGE = re.compile(r"\t*(?:\[[^\]]*\] )?image ''")


def ours(page: Observation, dialect: str) -> list[str]:
    """Our text without numbers, without what is there to be clicked alone, without our quotes around properties."""
    nodes = _without_listeners(page.nodes, dialect)
    if dialect == "webarena":
        nodes = [Node(node.id, node.role, node.name, None, node.props, node.depth) for node in nodes]
    text = render(Observation(page.url, tuple(nodes), page.title), dialect)  # type: ignore[arg-type]
    lines = text.split("\n")[2:] if dialect == "webarena" else text.split("\n")
    return [_plain(line, dialect) for line in lines if not _NAMELESS_IMAGE.fullmatch(line)]


def _without_listeners(nodes: tuple[Node, ...], dialect: str) -> list[Node]:
    remaining: list[Node] = []
    gone: list[int] = []
    for node in nodes:
        gone = [depth for depth in gone if depth < node.depth]
        props = tuple(prop for prop in node.props if prop[0] != "clickable")
        bare = node.role in ("generic", "image") or (dialect == "webarena" and not node.name)
        if props != node.props and not props and bare:
            gone.append(node.depth)
            continue
        remaining.append(Node(node.id, node.role, node.name, node.value, props, node.depth - len(gone)))
    return remaining


def _plain(line: str, dialect: str) -> str:
    line = re.sub(r"^(\t*)\[[^\]]*\] ", r"\1", line)
    pattern = r"(: )'([^']*)'(?= \w+: |$)" if dialect == "webarena" else r"(=)'(-?[0-9.]+)'(?=,|$)"
    return re.sub(pattern, r"\1\2", line)


def theirs(text: str) -> list[str]:
    """Their text without numbers, with our roles of fields."""
    lines = text.split("\n\n", 1)[1].split("\n") if text.startswith("Tab 0") else text.split("\n")
    lines = [re.sub(r"^(\t*)\[[^\]]*\] ", r"\1", line) for line in lines]
    lines = [re.sub(r"='(-?[0-9.]+)'(?=,|$)", r"=\1", line) for line in lines]
    lines = [re.sub(r"^(\t*)img ", r"\1image ", line) for line in lines]
    # Those that can be clicked have a name here.
    lines = [line for line in lines if not _NAMELESS_IMAGE.fullmatch(line)]
    return [re.sub(rf"^(\t*)({'|'.join(PICKERS)}) ", r"\1textbox ", line) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["webarena", "browsergym"])
async def test_texts_equal_those_of_the_package(package: str) -> None:
    python_of(package)
    with serving() as server, miniwob() as wob:
        server.pages["/inner"] = INNER
        # `libwebarena` prints nothing of what frames hold.
        names = [name for name in PAGES if package == "browsergym" or name != "frames"]
        pages: list[dict[str, Any]] = []
        for number, name in enumerate(names):
            server.pages[f"/{number}"] = f"<title>{name}</title><body>{PAGES[name]}"
            pages.append({"url": server.url(f"/{number}")})
        pages += [{"url": f"{wob}{task}.html", "script": MINIWOB_START} for task in MINIWOB if wob]
        # Both mostly wait for their browsers.
        expected, observations = await asyncio.gather(
            asyncio.to_thread(printed, package, pages), observed(package, pages)
        )
    assert len(expected) >= 30
    labels = [*names, *MINIWOB]
    different = {
        label: (theirs(text), ours(page, package))
        for label, text, page in zip(labels, expected, observations, strict=False)
        if theirs(text) != ours(page, package)
    }
    assert not different, json.dumps(different, indent=1, ensure_ascii=False)
