"""`dynaweb setup` on machines without a browser: what is installed, who is asked, and what a failure says.

`apt-get`, `apt-cache` and Playwright's installer are stand-ins that write down how they were called; the browser that
they bring is the real one.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dynaweb.errors import MissingError, output_end
from dynaweb.web.chromium import install as chromium

NO_NETWORK = """\
Downloading Chrome Headless Shell 151.0 from https://cdn.playwright.dev/chrome.zip
Error: getaddrinfo ENOTFOUND cdn.playwright.dev
    at GetAddrInfoReqWrap.onlookupall [as oncomplete] (node:dns:122:26) {
  errno: -3008,
  code: 'ENOTFOUND',
  syscall: 'getaddrinfo',
  hostname: 'cdn.playwright.dev'
}
Failed to install browsers
Error: Failed to download Chrome Headless Shell 151.0, caused by
Error: Download failure, code=1
    at ChildProcess.<anonymous> (/x/lib/server/browserFetcher.js:97:16) {
  errno: -3008
}
"""
LOADING = "chrome: error while loading shared libraries: libnss3.so: cannot open shared object file"


@dataclass
class Machine:
    """A machine without a browser. `fails` holds for a program what it prints when it fails."""

    folder: Path
    browser: Path
    fails: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    @property
    def calls(self) -> list[str]:
        """How the stand-ins were called, in order."""
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def program(self, name: str, *lines: str) -> Path:
        path = self.folder / "bin" / name
        failure = self.folder / f"{name}.failure"
        if name in self.fails:
            failure.write_text(self.fails[name])
            lines = (f"/bin/cat {failure} >&2", "exit 1")
        log = f'echo "{name} $*" >> {self.folder}/calls'
        path.write_text("\n".join(["#!/bin/sh", log, *lines, ""]))
        path.chmod(0o755)
        return path

    def shell(self, target: Path) -> str:
        """Shell text that puts the browser where `target` says; it starts once its libraries are there."""
        text = f'#!/bin/sh\\n[ -e {self.folder}/libraries ] || {{ echo "{LOADING}" >&2; exit 127; }}\\n'
        return (
            f"/bin/mkdir -p {target.parent}\n"
            f"printf '{text}exec {self.browser} \"$@\"\\n' > {target}\n/bin/chmod 755 {target}"
        )

    def set_up(self, monkeypatch: pytest.MonkeyPatch, *, root: bool, system: bool = True) -> str:
        """The version of the browser that `dynaweb setup` ends with."""
        (self.folder / "bin").mkdir(exist_ok=True)
        playwright = self.folder / "browsers/chromium_headless_shell-1/chrome-linux/headless_shell"
        libraries = f'case "$*" in *deps*) : > {self.folder}/libraries;; esac'
        wanted = f'case "$*" in "install "*)\n{self.shell(playwright)};; esac'
        installer = self.program("playwright", libraries, wanted)
        system_browser = self.folder / "bin" / "chromium"
        self.program("apt-cache", '[ "$2" = chromium ] || { echo "E: No packages found" >&2; exit 100; }')
        with_libraries = f": > {self.folder}/libraries\n{self.shell(system_browser)}"
        self.program("apt-get", f'case "$1" in install)\n{with_libraries};; esac')
        monkeypatch.setattr(chromium, "_PLAYWRIGHT", (str(installer),))
        monkeypatch.setattr(chromium, "_is_root", lambda: root)
        monkeypatch.setenv("PATH", str(self.folder / "bin"))
        monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(self.folder / "browsers"))
        monkeypatch.delenv(chromium.ENVIRONMENT_VARIABLE, raising=False)
        found, version = chromium.set_up(system=system, tell=self.told.append)
        assert found.path.is_relative_to(self.folder)
        return version


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, chromium.find().path)


def test_root_gets_the_browser_with_its_libraries_and_is_told_before(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.set_up(monkeypatch, root=True)[0].isdigit()
    assert machine.calls == ["playwright install --with-deps --only-shell chromium"]
    (line,) = machine.told
    assert (
        "with apt-get the libraries" in line and "--no-system" in line and "--with-deps --only-shell chromium" in line
    )
    # Again: it is there, and nothing is installed.
    machine.set_up(monkeypatch, root=True)
    assert len(machine.calls) == len(machine.told) == 1


def test_without_playwrights_downloads_root_gets_the_systems_browser(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.fails["playwright"] = NO_NETWORK
    machine.set_up(monkeypatch, root=True)
    assert machine.calls[1:] == [
        "apt-get update -q",
        "apt-cache show chromium-headless-shell",
        "apt-cache show chromium",
        "apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core",
    ]
    assert "ENOTFOUND cdn.playwright.dev" in machine.told[1]
    assert "--no-install-recommends chromium" in machine.told[-1]


@pytest.mark.parametrize(("root", "system", "sudo"), [(False, True, "sudo "), (True, False, "")])
def test_everybody_else_is_told_what_to_type(
    root: bool, system: bool, sudo: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingError) as caught:
        machine.set_up(monkeypatch, root=root, system=system)
    assert f"Type `{sudo}{machine.folder}/bin/playwright install-deps chromium`" in str(caught.value)
    assert "libnss3.so" in str(caught.value) and "\n" not in str(caught.value)
    assert machine.calls == ["playwright install --only-shell chromium"]
    machine.fails["playwright"] = NO_NETWORK
    (machine.folder / "browsers/chromium_headless_shell-1/chrome-linux/headless_shell").unlink()
    with pytest.raises(MissingError, match=f"Type `{sudo}apt-get install -y chromium-headless-shell`"):
        machine.set_up(monkeypatch, root=root, system=system)


def test_a_browser_without_its_libraries_gets_them_for_root(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError):
        machine.set_up(monkeypatch, root=False)
    machine.set_up(monkeypatch, root=True)
    assert machine.calls[1:] == ["playwright install-deps chromium"] and "lacks libraries" in machine.told[-1]


def test_what_all_ways_said_stands_in_the_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.fails |= {"playwright": NO_NETWORK, "apt-get": "W: old\nE: Unable to locate package chromium\n\n"}
    with pytest.raises(MissingError) as caught:
        machine.set_up(monkeypatch, root=True)
    for words in ("ENOTFOUND cdn.playwright.dev", "E: Unable to locate package chromium", "DYNAWEB_CHROMIUM="):
        assert words in str(caught.value)


def test_a_browser_that_was_named_is_nobody_elses(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = machine.folder / "mine"
    broken.write_text(f"#!/bin/sh\necho '{LOADING}' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr(chromium, "_is_root", lambda: True)
    for name in (str(broken), "/nowhere/chrome"):
        monkeypatch.setenv(chromium.ENVIRONMENT_VARIABLE, name)
        with pytest.raises(MissingError, match=name):
            chromium.set_up(tell=machine.told.append)
    assert not machine.told


PYTHON = """
import sys
def inner():
    raise ValueError("no such site: shop")
try:
    inner()
except ValueError as error:
    raise RuntimeError("it could not begin") from error
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NO_NETWORK, "Error: getaddrinfo ENOTFOUND cdn.playwright.dev | Error: Failed to download Chrome Headless "
                     "Shell 151.0, caused by | Error: Download failure, code=1"),
        ("E: Unable to locate package x\n", "E: Unable to locate package x"),
        ("one\ntwo\nthree\nfour\n}\n", "two | three | four"),
        ("Building\nerror: command 'gcc' failed\n  install gcc\n\n", "error: command 'gcc' failed | install gcc"),
        ("}\n)\n ]\n", ""),
        ("", ""),
        ("x" * 1000, "x" * 300),
    ],
)  # fmt: skip
def test_the_end_of_an_output_is_what_says_something(text: str, words: str) -> None:
    assert output_end(text) == words


def test_of_a_traceback_the_errors_are_told_and_not_the_lines_of_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", PYTHON], capture_output=True, text=True, check=False)
    assert output_end(done.stderr) == "ValueError: no such site: shop | RuntimeError: it could not begin"
