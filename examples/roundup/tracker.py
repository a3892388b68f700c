"""Roundup, an issue tracker of others, as a site to learn on: install it, start it, reset it, stop it, write its tasks.

    python tracker.py install            # Roundup from PyPI, into an environment of its own
    python tracker.py start              # on port 8917, or with --port 0 on a free one; prints the address
    python tracker.py reset              # drop all that was changed
    python tracker.py stop
    python tracker.py tasks              # write tasks/train.json and tasks/test.json anew

Everything is kept in a folder (`--home`): the environment, the tracker as it was made from the seed, and what runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from content import SEED
from tasks import write_tasks

from dynaweb.errors import DynawebError, InfrastructureError
from dynaweb.runs.atomic import write_text
from dynaweb.runs.cache import default_root
from dynaweb.runs.sidecar import clean_variables, install, python_of

HERE = Path(__file__).parent
PORT = 8917
"""The port that the recipe and the demonstrations name."""
ROUNDUP = "roundup"
SECONDS = 120.0
"""How long making or starting the tracker may take."""


@dataclass(frozen=True)
class Tracker:
    """The tracker of one folder and seed."""

    home: Path
    seed: int = SEED

    @property
    def seeded(self) -> Path:
        """The tracker as it was made, which no visitor changes."""
        return self.home / f"seed-{self.seed}"

    @property
    def running(self) -> Path:
        """What runs: process number and address."""
        return self.home / "running.json"

    def make(self) -> None:
        """Make the tracker, unless it is there. Raises `MissingError` without Roundup, `InfrastructureError`."""
        if self.seeded.exists():
            return
        partial = self.seeded.with_name(f"{self.seeded.name}.{os.getpid()}.partial")
        partial.mkdir(parents=True)
        self._run("make", partial, self.seed)
        partial.rename(self.seeded)

    def start(self, port: int = PORT) -> str:
        """Start it and return its address; of one that runs already, that. 0 = a free port.

        Raises `InfrastructureError` when the port is taken or the tracker does not answer.
        """
        if address := self.address():
            return address
        self.make()
        port = port or _free_port()
        if _taken(port):
            raise InfrastructureError(f"port {port} is taken by another program; give --port 0 for a free one")
        pid = int(self._run("start", self.seeded, port))
        address = f"http://localhost:{port}"
        end = time.monotonic() + SECONDS
        while not _answers(address):
            if time.monotonic() > end or not _alive(pid):
                raise InfrastructureError(f"the tracker did not start on port {port}; {self.seeded}.log says why")
            time.sleep(0.1)
        write_text(self.running, json.dumps({"pid": pid, "address": address}))
        return address

    def address(self) -> str:
        """The address of the tracker if it runs, else ''."""
        try:
            address = str(json.loads(self.running.read_text(encoding="utf-8"))["address"])
        except (OSError, ValueError, KeyError):
            return ""
        return address if _answers(address) else ""

    def reset(self) -> None:
        """Drop every visitor's changes. Raises `InfrastructureError` when it does not run."""
        address = self.address()
        if not address:
            raise InfrastructureError(f"no tracker of {self.home} is running; run: python tracker.py start")
        urllib.request.urlopen(f"{address}/reset", timeout=SECONDS).close()

    def stop(self) -> bool:
        """End it; False if it was not running."""
        is_running = bool(self.address())
        if is_running:
            pid = int(json.loads(self.running.read_text(encoding="utf-8"))["pid"])
            os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + SECONDS
            while self.address() and time.monotonic() < end:
                time.sleep(0.1)
        self.running.unlink(missing_ok=True)
        return is_running

    def _run(self, command: str, folder: Path, number: int) -> str:
        """What a command of serve.py prints, in Roundup's environment."""
        arguments = [str(python_of(ROUNDUP)), str(HERE / "serve.py"), command, str(folder), str(number)]
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=SECONDS, env=clean_variables(), check=False
        )
        if done.returncode:
            raise InfrastructureError(f"serve.py {command} {folder} failed: {done.stderr.strip()[-400:]}")
        return done.stdout


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/status", timeout=5) as answer:
            return b"Ready" in answer.read(100)
    except OSError:
        return False


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("command", choices=("install", "start", "reset", "stop", "tasks"))
    parser.add_argument("--home", type=Path, default=default_root() / "roundup", help="folder of the tracker")
    parser.add_argument("--seed", type=int, default=SEED, help="what its content is drawn from")
    parser.add_argument("--port", type=int, default=PORT, help="port to start it on; 0 = a free one")
    options = parser.parse_args(arguments)
    tracker = Tracker(options.home.absolute(), options.seed)
    try:
        if options.command == "install":
            print(install(ROUNDUP))
        elif options.command == "start":
            print(tracker.start(options.port))
        elif options.command == "reset":
            tracker.reset()
        elif options.command == "stop":
            print("stopped" if tracker.stop() else "it was not running")
        else:
            write_tasks(HERE / "tasks", options.seed)
    except DynawebError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
