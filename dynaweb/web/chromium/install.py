"""Finding a Chromium, installing one, and trying whether it starts. Playwright is imported for the trial only.

The headless shell is preferred where there is one: the same engine without a user interface loads pages in two thirds
of the time of a full Chromium.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dynaweb.config.files import expanded
from dynaweb.errors import MissingError

ENVIRONMENT_VARIABLE = "DYNAWEB_CHROMIUM"
_ON_PATH = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MAC_APPS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_PLAYWRIGHT_BINARIES = (
    "chromium_headless_shell-*/*/headless_shell*",
    "chromium_headless_shell-*/*/chrome-headless-shell*",
    "chromium-*/chrome-linux*/chrome",
    "chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
    "chromium-*/chrome-win*/chrome.exe",
)
_ADVICE = (
    "Install one with `dynaweb setup`, or by hand with `python -m playwright install chromium` "
    "(Debian: `apt-get install -y chromium-headless-shell`), or name one: "
    f"`--set web.browser=/path/to/chromium` or {ENVIRONMENT_VARIABLE}=/path/to/chromium."
)


_TRIAL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Chromium:
    """A browser that was found, and by which of the four ways."""

    path: Path
    origin: str


def find(setting: str = "") -> Chromium:
    """Look for a Chromium: the setting, the environment variable, Playwright's own, the PATH.

    A setting or variable that names no executable file is an error, not a reason to look further. Raises
    `MissingError` that says which command to run.
    """
    for name, origin in ((setting, "setting web.browser"), (os.environ.get(ENVIRONMENT_VARIABLE, ""), "environment")):
        if name:
            return Chromium(_named(name, origin), origin)
    for path in _playwright_browsers():
        return Chromium(path, "playwright")
    for path in _system_browsers():
        return Chromium(path, "PATH")
    raise MissingError(
        f"no Chromium found: tried {ENVIRONMENT_VARIABLE} (not set), Playwright's browsers in {_playwright_folder()}, "
        f"and {', '.join(_ON_PATH)} on the PATH. {_ADVICE}"
    )


def install() -> Chromium:
    """Use a Chromium that is there, else let Playwright install its own. Raises `MissingError` if that fails."""
    try:
        return find()
    except MissingError:
        command = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise MissingError(
            f"`{' '.join(command[1:])}` failed ({tail[0] if tail else done.returncode}). "
            f"Without access to Playwright's downloads use the system's browser. {_ADVICE}"
        )
    return find()


def try_out(chromium: Chromium) -> str:
    """Start the browser once without a window, open an empty page, and return its version.

    Not for use inside a running event loop. Raises `MissingError` that says why it does not start and which command
    helps; most often libraries of the system are missing.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise MissingError("Playwright is not installed; run: pip install 'dynaweb[web]'") from None
    try:
        with sync_playwright() as playwright:
            path, limit = str(chromium.path), 1000 * _TRIAL_SECONDS
            browser = playwright.chromium.launch(executable_path=path, headless=True, timeout=limit)
            browser.new_page().goto("about:blank")
            version = browser.version
            browser.close()
    except Error as error:
        raise MissingError(
            f"the browser {chromium.path} (from {chromium.origin}) does not start: {_reason(error.message)}. "
            f"{_repair(chromium)}, or name another browser with {ENVIRONMENT_VARIABLE}=/path/to/chromium"
        ) from error
    return str(version)


def _reason(message: str) -> str:
    """The line of Playwright's long message that says why."""
    lines = [line.strip(" ║╔╚═╗╝-") for line in message.splitlines()]
    telling = [line for line in lines if "error while loading" in line or "missing dependencies" in line]
    return next(iter([*telling, *filter(None, lines)]), "no reason given").rstrip(".:")


def _repair(chromium: Chromium) -> str:
    if chromium.origin == "playwright":
        return f"Install the libraries that it needs with `{sys.executable} -m playwright install-deps chromium`"
    return (
        "Install the system's browser again (Debian: `apt-get install --reinstall chromium`), or the libraries that it "
        f"needs with `{sys.executable} -m playwright install-deps chromium`"
    )


def end_driver(browser_pid: int) -> None:
    """End Playwright's driver, and with it the browser of that process id, without asking either.

    For a browser whose event loop is gone; it ends when its pipe does. Does nothing unless its parent is a child of
    this process.
    """
    driver = _parent(browser_pid) if browser_pid else 0
    if driver and _parent(driver) == os.getpid():
        with suppress(ProcessLookupError):
            os.kill(driver, signal.SIGKILL)


def _parent(pid: int) -> int:
    """Process id of the parent; 0 when it cannot be told."""
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    with suppress(OSError, ValueError):
        done = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(done.stdout)
    return 0


def _named(name: str, origin: str) -> Path:
    path = shutil.which(str(expanded(name)))
    if path is None:
        raise MissingError(f"the {origin} names the browser {name!r}, which is not an executable file. {_ADVICE}")
    return Path(path)


def _playwright_folder() -> Path:
    chosen = os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "")
    if chosen and chosen != "0":
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/ms-playwright"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "ms-playwright"
    return Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache") / "ms-playwright"


def _playwright_browsers() -> Iterator[Path]:
    """Newest first; the headless shell before the full browser, because its pages load in two thirds of the time."""
    for pattern in _PLAYWRIGHT_BINARIES:
        paths = sorted(_playwright_folder().glob(pattern), key=_revision, reverse=True)
        yield from (path for path in paths if path.is_file() and os.access(path, os.X_OK))


def _revision(path: Path) -> int:
    digits = next((part.rpartition("-")[2] for part in path.parts if part.startswith("chromium")), "")
    return int(digits) if digits.isdigit() else 0


def _system_browsers() -> Iterator[Path]:
    for name in _ON_PATH:
        path = shutil.which(name)
        if path:
            yield Path(path)
    yield from (Path(app) for app in _MAC_APPS if Path(app).is_file())
