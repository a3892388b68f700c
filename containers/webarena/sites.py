"""The sites of WebArena, a copy for each worker: started, set up, waited for, and reset to what was published.

    python3 sites.py up --workers 4 --host my-host        # all sites of four workers
    python3 sites.py recipe --workers 4 --host my-host    # what a recipe says about them
    python3 sites.py reset 2 shopping,reddit              # two sites of worker 2, as they were published
    python3 sites.py serve --host my-host --port 7565     # the same over HTTP, for runs on other machines
    python3 sites.py status --workers 4
    python3 sites.py down --workers 4

It needs Python and Docker with Compose, and nothing of dynaweb. Worker n has the ports of worker 1 plus 100 * (n - 1),
containers called `webarena-n-SITE-1`, and a network of its own. `WEBARENA_DOCKER` names another program than `docker`.
"""

from __future__ import annotations

import argparse
import fcntl
import http.client
import http.server
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

COMPOSE = Path(__file__).with_name("compose.yml")
PORTS = {"shopping": 7770, "shopping_admin": 7780, "reddit": 9999, "gitlab": 8023, "wikipedia": 8888}
"""Ports of worker 1, those of WebArena's authors."""
SHARED = ("wikipedia",)
"""Sites that cannot be changed: all workers use those of worker 1."""
PATHS = {
    "shopping_admin": "/admin",
    "wikipedia": "/wikipedia_en_all_maxi_2022-05/A/User:The_other_Kiwix_guy/Landing",
}
"""Where a site begins, below its address."""
STEP = 100
READY, RESETTING, FAILED = "Ready for duty!", "resetting", "failed"
"""What `/status` says; after the last one stands why."""

MAGENTO = "/var/www/magento2/bin/magento"
SQL = 'UPDATE core_config_data SET value="{url}/" WHERE path = "web/secure/base_url";'
SETUP: dict[str, tuple[tuple[str, ...], ...]] = {
    "shopping": (
        (MAGENTO, "setup:store-config:set", "--base-url={url}"),
        ("mysql", "-u", "magentouser", "-pMyPassword", "magentodb", "-e", SQL),
        (MAGENTO, "cache:flush"),
    ),
    "shopping_admin": (
        # No password has to be renewed.
        ("php", MAGENTO, "config:set", "admin/security/password_is_forced", "0"),
        ("php", MAGENTO, "config:set", "admin/security/password_lifetime", "0"),
        (MAGENTO, "setup:store-config:set", "--base-url={url}"),
        ("mysql", "-u", "magentouser", "-pMyPassword", "magentodb", "-e", SQL),
        (MAGENTO, "cache:flush"),
    ),
    "gitlab": (
        ("sed", "-i", "s|^external_url.*|external_url '{url}'|", "/etc/gitlab/gitlab.rb"),
        ("gitlab-ctl", "reconfigure"),
    ),
}
"""What WebArena's README has one run in each container: the address under which the site is reached."""


class SitesError(Exception):
    """Something about the sites did not work; the message says what, and what to do."""


class Worker:
    """The sites of one worker, `number` from 1."""

    def __init__(self, number: int, host: str, wait: float) -> None:
        self.number, self.host, self.wait = number, host, wait

    def port(self, site: str) -> int:
        """The port on this machine."""
        first = int(os.environ.get(f"{site.upper()}_PORT", PORTS[site]))
        return first if site in SHARED else first + STEP * (self.number - 1)

    def url(self, site: str) -> str:
        """The address of a site, without a path."""
        return f"http://{self.host}:{self.port(site)}"

    def compose(self, *arguments: str) -> None:
        """Docker Compose with this worker's names and ports. Raises `SitesError` with what it printed."""
        ports = {f"{site.upper()}_PORT": str(self.port(site)) for site in PORTS}
        shared = ["--profile", "shared"] if self.number == 1 else []
        docker = shlex.split(os.environ.get("WEBARENA_DOCKER", "docker"))
        project = ["-p", f"webarena-{self.number}"]
        command = [*docker, "compose", "-f", str(COMPOSE), *project, *shared, *arguments]
        variables = {**os.environ, **ports, "DYNAWEB_WORKER": str(self.number)}
        try:
            done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        except OSError as error:
            raise SitesError(f"{command[0]} cannot be run ({error.strerror}); install Docker with Compose") from None
        if done.returncode:
            words = (done.stderr or done.stdout).strip()
            raise SitesError(f"worker {self.number}: {shlex.join(arguments)} failed (exit {done.returncode}): {words}")

    def start(self, sites: Sequence[str]) -> None:
        """Make and start containers, set them up, and wait until each answers under its own address."""
        sites = self.own(sites)
        if not sites:  # Compose takes no names for all of them
            return
        self.compose("up", "-d", "--no-deps", *sites)
        with ThreadPoolExecutor(len(sites)) as pool:
            list(pool.map(self._set_up, sites))

    def reset(self, sites: Sequence[str]) -> None:
        """Drop the containers with all that was changed in them, and start new ones of the published images."""
        sites = [site for site in self.own(sites) if site not in SHARED]
        if not sites:
            return
        with self._one_reset():
            self.compose("rm", "--stop", "--force", "--volumes", *sites)
            self.start(sites)

    def remove(self, sites: Sequence[str]) -> None:
        """Remove containers with all that was changed in them, and the network where no site is left out."""
        if set(self.own(sites)) == set(self.own(list(PORTS))):
            self.compose("down", "--volumes", "--remove-orphans")
        elif sites := self.own(sites):
            self.compose("rm", "--stop", "--force", "--volumes", *sites)

    @contextmanager
    def _one_reset(self) -> Iterator[None]:
        """One reset of this worker at a time, also where several processes ask, or one that was killed left its own."""
        folder = Path(tempfile.gettempdir()) / f"webarena-sites-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        with (folder / f"{self.number}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def own(self, sites: Sequence[str]) -> list[str]:
        """Those of the sites that this worker has: worker 1 has all, the others none that is shared."""
        return [site for site in sites if self.number == 1 or site not in SHARED]

    def answers(self, site: str) -> bool:
        """Whether a site answers under its own address, and does not lead to another one."""
        try:
            with urllib.request.urlopen(self.url(site) + PATHS.get(site, "/"), timeout=20) as answer:
                return urlsplit(answer.url).netloc == urlsplit(self.url(site)).netloc
        except urllib.error.HTTPError as error:
            # Who was led to another worker's site may find no such page there.
            return error.code < 500 and urlsplit(error.url).netloc == urlsplit(self.url(site)).netloc
        except (OSError, http.client.HTTPException):
            return False

    def _set_up(self, site: str) -> None:
        """The commands of WebArena's README, again until the services in the container take them."""
        ends = time.monotonic() + self.wait
        for command in SETUP.get(site, ()):
            words = [word.replace("{url}", self.url(site)) for word in command]
            while True:
                try:
                    self.compose("exec", "-T", site, *words)
                    break
                except SitesError:
                    if time.monotonic() > ends:
                        raise
                    time.sleep(2)
        while not self.answers(site):
            if time.monotonic() > ends:
                raise SitesError(f"{site} of worker {self.number}: no answer at {self.url(site)} after {self.wait:g} s")
            time.sleep(1)


def recipe(workers: Sequence[Worker], sites: Sequence[str], reset: str) -> str:
    """The part of a recipe that names the copies."""
    lines = [
        "# Episodes that are open at once: not more than there are copies.",
        "[web]",
        f"contexts = {len(workers)}",
        "",
        "# In a dream of webarena these are env.task_settings and env.task_settings.urls.",
        "[env]",
        'name = "webarena"',
        f"reset_copy = {quoted(reset)}",
        "",
        "[env.urls]",
    ]
    for site in sites:
        addresses = [quoted(one.url(site) + PATHS.get(site, "")) for one in workers]
        lines.append(f"{site} = {addresses[0] if site in SHARED else '[' + ', '.join(addresses) + ']'}")
    return "\n".join(lines)


def quoted(text: str) -> str:
    """A text as TOML has it: its basic strings are JSON's, but for surrogates, which are not escaped there."""
    return json.dumps(text, ensure_ascii=False)


class Handler(http.server.BaseHTTPRequestHandler):
    """`/reset?copy=N&sites=A,B` answers when it is done; `/reset` begins with everything, and `/status` says when it is
    done, as reset servers of WebArena do."""

    workers: dict[int, Worker]
    sites: Sequence[str]
    state: ClassVar[dict[str, str]] = {"words": READY}
    guard = threading.Lock()

    def do_GET(self) -> None:
        """Answer one request."""
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        try:
            code, words = self._answer(parts.path, query)
        except (SitesError, ValueError, OSError) as error:
            code, words = 500, str(error)
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.end_headers()
        self.wfile.write(words.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """One line a request, on stderr."""
        sys.stderr.write(f"{self.command} {self.path}: {format % arguments}\n")

    def _answer(self, path: str, query: dict[str, str]) -> tuple[int, str]:
        if path == "/status":
            return 200, self.state["words"]
        if path != "/reset":
            return 404, "there are /reset, /reset?copy=N&sites=A,B and /status"
        if "copy" not in query:
            with self.guard:
                if self.state["words"] != RESETTING:
                    self.state["words"] = RESETTING
                    threading.Thread(target=self._everything, daemon=True).start()
            return 200, "begun"
        worker = self.workers.get(int(query["copy"]))
        if worker is None:
            return 404, f"there is no copy {query['copy']}; copies are {', '.join(map(str, self.workers))}"
        worker.reset(chosen(query.get("sites", ",".join(self.sites))))
        return 200, "done"

    def _everything(self) -> None:
        words = READY
        try:
            for_all(list(self.workers.values()), lambda one: one.reset(self.sites))
        except Exception as error:  # of any kind: whoever waits for `/status` would wait for ever
            words = f"{FAILED}: {error}"
        self.state["words"] = words


def for_all(workers: Sequence[Worker], work: Callable[[Worker], None]) -> None:
    """Do something with every worker, all at once."""
    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(work, workers))


def chosen(text: str) -> list[str]:
    """Names of sites out of a text with commas. Raises `SitesError` for one that is none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in PORTS]:
        raise SitesError(f"there is no site {unknown[0]!r}; sites are {', '.join(PORTS)}")
    return names


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    host = argparse.ArgumentParser(add_help=False)
    host.add_argument("--host", default="127.0.0.1", help="the name under which runs reach this machine")
    host.add_argument("--wait", type=float, default=900.0, help="seconds that a site may take to answer")
    host.add_argument("--sites", default=",".join(PORTS), help="which sites, with commas")
    several = argparse.ArgumentParser(add_help=False)
    several.add_argument("--workers", type=int, default=1, help="how many copies")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("up", "start all sites and wait for them"),
        ("down", "remove them with all that was changed"),
        ("status", "which sites answer"),
        ("recipe", "what a recipe says about them"),
    ):
        commands.add_parser(name, parents=[host, several], help=words)
    reset = commands.add_parser("reset", parents=[host], help="sites of one worker as they were published")
    reset.add_argument("worker", type=int, nargs="?", default=int(os.environ.get("DYNAWEB_WORKER", 1)))
    reset.add_argument("only", nargs="?", default="", help="which sites, with commas; all without")
    serve = commands.add_parser("serve", parents=[host, several], help="resets over HTTP")
    serve.add_argument("--bind", default="127.0.0.1", help="address to listen on")
    serve.add_argument("--port", type=int, default=7565)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says: 0, or 1 with what failed on stderr."""
    options = parse(arguments)
    try:
        sites = chosen(options.sites)
        if not sites:
            raise SitesError(f"--sites names none; sites are {', '.join(PORTS)}")
        if options.command == "reset":
            if options.worker < 1:
                raise SitesError(f"there is no worker {options.worker}; workers are counted from 1")
            Worker(options.worker, options.host, options.wait).reset(chosen(options.only) or sites)
            return 0
        if options.workers < 1:
            raise SitesError("--workers is at least 1")
        workers = [Worker(number + 1, options.host, options.wait) for number in range(options.workers)]
        if options.command == "up":
            for_all(workers, lambda one: one.start(sites))
            print(recipe(workers, sites, _own_reset(options.host)))
        elif options.command == "down":
            for_all(workers, lambda one: one.remove(sites))
        elif options.command == "recipe":
            print(recipe(workers, sites, _own_reset(options.host)))
        elif options.command == "serve":
            Handler.workers, Handler.sites = {one.number: one for one in workers}, sites
            server = http.server.ThreadingHTTPServer((options.bind, options.port), Handler)
            print(f"resets on http://{options.bind}:{server.server_port}", flush=True)
            server.serve_forever()
        else:
            rows = [(one.number, site, one.url(site), one.answers(site)) for one in workers for site in one.own(sites)]
            for number, site, url, answers in rows:
                print(f"{number}  {site:<15} {url:<30} {'answers' if answers else 'DOES NOT ANSWER'}")
            return 0 if all(row[-1] for row in rows) else 1
    except SitesError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _own_reset(host: str) -> str:
    return shlex.join(["python3", str(Path(__file__).resolve()), "reset", "--host", host]) + " {copy} {sites}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
