"""Makes the gallery of the documentation: the pages of a run, pictures of them, figures of published results.

    dynaweb run smoke --set env.task_settings.driver=static --set rl.tasks=10 --set rl.n=2 --set rl.updates=3 \\
        --set rl.expert_share=0 --set dream.recall=false --set eval.episodes=12 --out runs/gallery
    python scripts/gallery.py runs/gallery

Writes docs/gallery/ (the site, as `dynaweb view --export` makes it) and docs/images/gallery-*. All of it is kept in the
repository, so a run with large pages is refused; one of a few updates is enough to show what a report has.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import dynaweb
from dynaweb.web.chromium.install import find as find_chromium

ROOT = Path(__file__).resolve().parent.parent
SITE, IMAGES = ROOT / "docs" / "gallery", ROOT / "docs" / "images"
LARGEST = 3 * 2**20
"""Bytes that the site may take in the repository, of which git keeps about a fifth."""
PICTURES = {
    "gallery-report": ("report.html", "", 900),
    "gallery-trajectory": ("report.html", "#trajectories", 760),
    "gallery-compare": ("compare.html", "#paired-episodes", 760),
}
"""Name of a picture -> page, section and height that it shows."""
FIGURES = {"dream-length-memory": ("main", "learning")}
"""Raw results -> the figures that are shown of them, by the end of their names."""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def site(run: Path) -> None:
    """Export the pages of a run. Exits where they are too large for a repository."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "site")
        dynaweb.export_site(run, out)
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        if size > LARGEST:
            sys.exit(
                f"the pages of {run} take {size >> 10} KiB, more than {LARGEST >> 10}; take a run of fewer updates"
            )
        shutil.rmtree(SITE, ignore_errors=True)
        shutil.copytree(out, SITE, ignore=shutil.ignore_patterns(".*"))
    print(f"{SITE}: {size >> 10} KiB")


def pictures() -> None:
    """Photograph the pages with Chromium."""
    from playwright.sync_api import sync_playwright

    with served(SITE) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_chromium().path), args=["--no-sandbox"])
        for name, (page_name, section, height) in PICTURES.items():
            page = browser.new_page(viewport={"width": 1200, "height": height}, color_scheme="light")
            page.goto(f"{address}/{page_name}{section}")
            page.wait_for_timeout(1500)
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
        browser.close()


def figures() -> None:
    """Draw figures of the raw results in results/."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, kinds in FIGURES.items():
            for path in dynaweb.reproduce(name, results=ROOT / "results", out=scratch):
                kind = path.stem.partition("-")[2]
                if path.suffix == ".svg" and kind in kinds:
                    shutil.copy(path, IMAGES / f"gallery-{kind}.svg")


def main() -> None:
    """Make all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a finished run, not a large one")
    run: Path = parser.parse_args().run
    site(run)
    pictures()
    figures()


if __name__ == "__main__":
    main()
