"""Finding a Chromium, installing one with the libraries that it needs, and trying whether it starts.

Playwright is imported for the trial only. Packages of the system are installed for root alone, and said beforehand.

The headless shell is preferred where there is one: the same engine without a user interface loads pages in two thirds
of the time of a full Chromium.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dynaweb.config.files import expanded
from dynaweb.errors import MissingError, output_end

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
_PLAYWRIGHT = (sys.executable, "-m", "playwright")
_SYSTEM_CHROMIUM = ("chromium-headless-shell", "chromium")
"""Packages of Debian's that hold a browser, the quicker one first. Ubuntu has none that works in a container."""
_NO_PLAYWRIGHT = "Playwright is not installed; run: pip install 'dynaweb[web]'"
_FONTS = "fonts-dejavu-core"
_QUIET: Mapping[str, str] = {"DEBIAN_FRONTEND": "noninteractive"}


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


def set_up(*, system: bool = True, tell: Callable[[str], None] = lambda text: None) -> tuple[Chromium, str]:
    """A Chromium that starts, and its version: the one that is there, else one that is installed now.

    As root, and unless `system` is False, the system's package manager brings the libraries that it lacks, or a whole
    browser where Playwright's downloads cannot be had; `tell` gets one line on what and how before anything is
    installed. A browser that was named by hand is taken as it is. Raises `MissingError` that says what failed and,
    where packages of the system are lacking, the command to type.
    """
    by_system = system and _is_root() and shutil.which("apt-get") is not None
    try:
        chromium = find()
    except MissingError:
        if os.environ.get(ENVIRONMENT_VARIABLE):
            raise
        return _installed(by_system, tell)
    try:
        return chromium, try_out(chromium)
    except MissingError as error:
        if not by_system or chromium.origin == "environment" or not _lacks_libraries(str(error)):
            raise
    _install_libraries(tell)
    return chromium, try_out(chromium)


def _installed(by_system: bool, tell: Callable[[str], None]) -> tuple[Chromium, str]:
    """Playwright's headless shell with its libraries; where that fails, the system's browser."""
    if find_spec("playwright") is None:
        raise MissingError(_NO_PLAYWRIGHT)
    command = [*_PLAYWRIGHT, "install", *(["--with-deps"] if by_system else []), "--only-shell", "chromium"]
    libraries = ", and with apt-get the libraries that it needs (--no-system leaves those out)" if by_system else ""
    what = f"Playwright's headless shell into {_playwright_folder()}{libraries}"
    tell(f"no Chromium here; installing {what}: {_typed(command)}")
    failure = _run(command)
    if failure and by_system:
        tell(f"that failed: {failure}")
        _install_from_system(failure, tell)
    elif failure:
        raise MissingError(
            f"`{_typed(command)}` failed: {failure}. Type `{_sudo()}apt-get install -y {_SYSTEM_CHROMIUM[0]}` "
            f"(Debian), or name a browser: {ENVIRONMENT_VARIABLE}=/path/to/chromium"
        )
    chromium = find()
    return chromium, try_out(chromium)


def _install_libraries(tell: Callable[[str], None]) -> None:
    """The libraries of a browser that is there. Raises `MissingError` when neither way works."""
    command = [*_PLAYWRIGHT, "install-deps", "chromium"]
    tell(
        "the browser lacks libraries; installing them with apt-get (--no-system leaves the system's packages alone): "
        f"{_typed(command)}"
    )
    if failure := _run(command):
        tell(f"that failed: {failure}")
        _install_from_system(failure, tell)


def _install_from_system(failure: str, tell: Callable[[str], None]) -> None:
    """The first package of `_SYSTEM_CHROMIUM` that apt knows; it brings the libraries, too."""
    update = ["apt-get", "update", "-q"]
    troubles = [failure, _run(update)]
    for package in _SYSTEM_CHROMIUM:
        if _run(["apt-cache", "show", package]):
            continue
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package, _FONTS]
        tell(f"installing the system's browser: {_typed(command)}")
        trouble = _run(command)
        if not trouble:
            return
        troubles.append(f"`{_typed(command)}`: {trouble}")
    raise MissingError(
        f"no Chromium could be installed: {'; '.join(dict.fromkeys(filter(None, troubles)))}. Install one by hand, and "
        f"name it: {ENVIRONMENT_VARIABLE}=/path/to/chromium"
    )


def _run(command: Sequence[str]) -> str:
    """Run a command to its end: '', or why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **_QUIET})
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if done.returncode == 0:
        return ""
    return output_end(done.stderr) or output_end(done.stdout) or f"exit code {done.returncode}"


def _typed(command: Sequence[str]) -> str:
    """A command as one types it."""
    return shlex.join(command)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _sudo() -> str:
    """What stands before a command that root alone may run."""
    return "" if _is_root() else "sudo "


def _lacks_libraries(message: str) -> bool:
    return "error while loading" in message or "missing dependencies" in message


def try_out(chromium: Chromium) -> str:
    """Start the browser once without a window, open an empty page, and return its version.

    Not for use inside a running event loop. Raises `MissingError` that says why it does not start and which command
    helps; most often libraries of the system are missing.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise MissingError(_NO_PLAYWRIGHT) from None
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
    command = f"`{_sudo()}{_typed([*_PLAYWRIGHT, 'install-deps', 'chromium'])}`"
    if chromium.origin == "playwright":
        return f"Type {command}, which installs the libraries that it needs"
    return (
        f"Install the system's browser again (Debian: `{_sudo()}apt-get install --reinstall chromium`), or the "
        f"libraries that it needs with {command}"
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
