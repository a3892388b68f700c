"""Stands in for `docker compose`: a container is a process, a small shop that keeps state until it is dropped.

`python docker_stand_in.py compose -f FILE -p PROJECT [--profile P] up|exec|rm|down ...`; the folder that holds what a
Docker daemon would hold is in the variable STAND_IN. Commands within a container are refused twice before they work, as
by services that still start.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["STAND_IN"])


def containers(project: str) -> dict[str, Path]:
    return {path.stem: path for path in STATE.glob(f"{project}/*.json")}


def up(project: str, sites: list[str]) -> None:
    for site in sites:
        path = STATE / project / f"{site}.json"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        port = os.environ[f"{site.upper()}_PORT"]
        command = [sys.executable, __file__, "serve", str(path), port]
        with open(os.devnull, "w") as nowhere:
            process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, start_new_session=True)
        path.write_text(json.dumps({"pid": process.pid, "base": "", "basket": 0, "commands": [], "refused": 0}))


def drop(path: Path) -> None:
    os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
    path.unlink()


def execute(project: str, site: str, command: list[str]) -> None:
    path = STATE / project / f"{site}.json"
    state = json.loads(path.read_text())
    if state["refused"] < 2:
        path.write_text(json.dumps(state | {"refused": state["refused"] + 1}))
        sys.exit("Error response from daemon: the service is still starting")
    base = next((word.partition("=")[2] for word in command if word.startswith("--base-url=")), state["base"])
    path.write_text(json.dumps(state | {"base": base, "commands": [*state["commands"], command]}))


def serve(path: Path, port: int) -> None:
    class Shop(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state = json.loads(path.read_text())
            if self.path == "/add":
                path.write_text(json.dumps(state | {"basket": state["basket"] + 1}))
            # As Magento: whoever comes by another address is led to the one that was set.
            leads = state["base"] not in ("", f"http://{self.headers['Host']}")
            self.send_response(302 if leads else 200)
            if leads:
                self.send_header("Location", state["base"])
            self.end_headers()
            self.wfile.write(f"{state['basket']} goods".encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    while not path.exists():
        time.sleep(0.01)
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Shop).serve_forever()


def main(arguments: list[str]) -> None:
    if arguments[0] == "serve":
        serve(Path(arguments[1]), int(arguments[2]))
    assert arguments[0] == "compose" and Path(arguments[arguments.index("-f") + 1]).name == "compose.yml"
    project = arguments[arguments.index("-p") + 1]
    assert project == f"webarena-{os.environ['DYNAWEB_WORKER']}"
    at = next(at for at, word in enumerate(arguments) if word in ("up", "exec", "rm", "down"))
    verb, rest = arguments[at], [word for word in arguments[at + 1 :] if not word.startswith("-")]
    if verb == "up":
        # No names are all sites.
        up(project, rest or [name.removesuffix("_PORT").lower() for name in os.environ if name.endswith("_PORT")])
    elif verb == "exec":
        execute(project, rest[0], arguments[arguments.index(rest[0], at) + 1 :])
    else:
        for site, path in containers(project).items():
            if verb == "down" or site in rest:
                drop(path)


if __name__ == "__main__":
    main(sys.argv[1:])
