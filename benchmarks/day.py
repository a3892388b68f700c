"""A day in the life of the web layer: a random policy on real applications of others, while things are killed.

    python benchmarks/day.py [--episodes 500] [--sessions 4] [--kills 0.06] [--minutes 600] [--apps radicale,trac]
        [--markdown]

The applications come from the package index, each into an environment of its own beside those of `dynaweb env install`,
and run on ports of 127.0.0.1. Sessions of one pool play side by side. In a share of the episodes a renderer, the
browser or the application is killed. Before it plays, every episode looks for what an earlier one has left (cookies,
storage, credentials, keys that are down, permissions, the name of the window, caches, service workers, downloads), and
then leaves all of these itself. Prints one JSON object: how episodes ended, every reason why one was lost, and leaks;
with `--markdown` also the table of it that docs/web.md has.
An episode that ends by anything but the package's own errors has no reason; the exit code is then 1, as for a leak.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from served import report

from dynaweb.errors import BrowserError
from dynaweb.runs import sidecar
from dynaweb.types import Action, Observation
from dynaweb.web.chromium.network import LOOPBACK
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession

STEPS = 8
"""Actions of an episode."""
HANG_SECONDS = 120.0
"""An episode that takes longer is a hang, which is an error here."""

# --- applications ---


@dataclass(frozen=True)
class App:
    """An application: its packages, what makes its data, and what serves it on a port."""

    packages: tuple[str, ...]
    prepare: Callable[[Path, Path], None]
    command: Callable[[Path, Path, int], list[str]]
    path: str = "/"


def _run(command: Sequence[object], folder: Path, **variables: str) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode:
        raise SystemExit(f"{words[0]} failed: {(done.stderr or done.stdout)[-800:]}")


def _script(python: Path, name: str) -> list[str]:
    """A script of an environment, whose first line may name the folder in which that was made."""
    return [str(python), str(python.with_name(name))]


def _database(_: Path, folder: Path) -> None:
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("create table product (id integer primary key, name text, price real, stock integer)")
        database.execute("create table review (id integer primary key, product integer references product, text text)")
        rows = [(i, f"Product {i}", i * 1.5, i % 7) for i in range(300)]
        database.executemany("insert into product values (?, ?, ?, ?)", rows)
        database.executemany("insert into review values (?, ?, ?)", [(i, i % 300, f"Good {i}") for i in range(900)])


def _repository(python: Path, folder: Path) -> None:
    """A git repository, made by the library that klaus reads it with."""
    (folder / "repo").mkdir()
    script = """
import sys
from pathlib import Path
from dulwich import porcelain
root = Path(sys.argv[1])
porcelain.init(root)
for number in range(12):
    file = root / f"file{number % 4}.py"
    file.write_text(f"print({number})\\n" * (number + 1))
    porcelain.add(root, [str(file)])
    ann = b"Ann <a@example.org>"
    porcelain.commit(root, message=f"Change {number}".encode(), author=ann, committer=ann)
"""
    _run([python, "-c", script, folder / "repo"], folder)


def _packages(_: Path, folder: Path) -> None:
    for number in range(20):
        (folder / f"thing{number % 5}-{number}.0.tar.gz").write_bytes(b"no archive")


def _hg(python: Path, folder: Path) -> None:
    _run([*_script(python, "hg"), "init", "repo"], folder)
    for number in range(12):
        (folder / "repo" / f"file{number % 4}.txt").write_text(f"line {number}\n" * (number + 1))
        _run([*_script(python, "hg"), "commit", "-A", "-m", f"Change {number}", "-u", "ann"], folder / "repo")


def _trac(python: Path, folder: Path) -> None:
    _run([*_script(python, "trac-admin"), folder / "env", "initenv", "Tests", "sqlite:db/trac.db"], folder)
    _run([*_script(python, "trac-admin"), folder / "env", "permission", "add", "anonymous", "TRAC_ADMIN"], folder)


def _django(python: Path, folder: Path) -> None:
    """The administration of Django, which lets everybody in as its only user."""
    _run([python, "-m", "django", "startproject", "demo", "."], folder)
    settings = folder / "demo" / "settings.py"
    settings.write_text(
        settings.read_text()
        + "\nALLOWED_HOSTS = ['*']\nAUTHENTICATION_BACKENDS = ['django.contrib.auth.backends.RemoteUserBackend']\n"
        "MIDDLEWARE += ['demo.entry.Entry', 'django.contrib.auth.middleware.RemoteUserMiddleware']\n"
    )
    (folder / "demo" / "entry.py").write_text(
        "class Entry:\n    def __init__(self, following):\n        self.following = following\n"
        "    def __call__(self, request):\n        request.META['REMOTE_USER'] = 'ann'\n"
        "        return self.following(request)\n"
    )
    _run([python, "manage.py", "migrate"], folder)
    script = (
        "from django.contrib.auth.models import Group, User; "
        "User.objects.create_superuser('ann', 'a@example.org', 'x'); "
        "[Group.objects.create(name=f'Group {i}') for i in range(150)]"
    )
    _run([python, "manage.py", "shell", "-c", script], folder)


def _nothing(_: Path, folder: Path) -> None:
    (folder / "data").mkdir()


APPS = {
    "radicale": App(
        ("radicale>=3,<4",),
        _nothing,
        lambda python, folder, port: [
            str(python), "-m", "radicale", "--server-hosts", f"127.0.0.1:{port}", "--auth-type", "none",
            "--storage-filesystem-folder", str(folder / "data"),
        ],
    ),
    "pypiserver": App(
        ("pypiserver>=2,<3", "setuptools<81"),
        _packages,
        lambda python, folder, port: [
            str(python), "-m", "pypiserver", "run", "-p", str(port), "-i", "127.0.0.1", "-P", ".", "-a", ".",
            str(folder),
        ],
    ),
    "datasette": App(
        ("datasette>=0.64,<1",),
        _database,
        lambda python, folder, port: [
            str(python), "-m", "datasette", "serve", str(folder / "shop.db"), "--host", "127.0.0.1", "--port", str(port)
        ],
    ),
    "sqlite-web": App(
        ("sqlite-web",),
        _database,
        lambda python, folder, port: [
            *_script(python, "sqlite_web"), "-x", "-H", "127.0.0.1", "-p", str(port), str(folder / "shop.db")
        ],
    ),
    "klaus": App(
        ("klaus>=3,<4", "setuptools<81"),
        _repository,
        lambda python, folder, port: [
            *_script(python, "klaus"), "--host", "127.0.0.1", "--port", str(port), str(folder / "repo")
        ],
    ),
    "mercurial": App(
        ("mercurial>=6",),
        _hg,
        lambda python, folder, port: [
            *_script(python, "hg"), "-R", str(folder / "repo"), "serve", "-a", "127.0.0.1", "-p", str(port)
        ],
    ),
    "trac": App(
        ("trac>=1.6,<2", "setuptools<81"),
        _trac,
        lambda python, folder, port: [
            *_script(python, "tracd"), "-s", "--hostname", "127.0.0.1", "-p", str(port), str(folder / "env")
        ],
    ),
    "django-admin": App(
        ("django>=5,<6",),
        _django,
        lambda python, folder, port: [str(python), "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"],
        "/admin/",
    ),
}  # fmt: skip
"""Real applications of others; a person would use each in a browser."""


class Site:
    """An application that runs, can be killed, and starts again on the same port."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.app = name, APPS[name]
        self.folder = home / name
        self.folder.mkdir()
        self.python = sidecar.install(f"day-{name}", sidecar=sidecar.Sidecar(name, self.app.packages))
        self.app.prepare(self.python, self.folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.kills = 0
        self.start()

    @property
    def url(self) -> str:
        """Its first page; every application has a host name of its own."""
        return f"http://{self.name}.localhost:{self.port}{self.app.path}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = self.app.command(self.python, self.folder, self.port)
        log = (self.folder / "log").open("ab")
        variables = {**sidecar.clean_variables(), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command, cwd=self.folder, stdout=log, stderr=log, env=variables, start_new_session=True
        )
        for _ in range(600):
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"{self.name} did not start: {(self.folder / 'log').read_text()[-800:]}")

    def kill(self) -> None:
        """End it at once, with what it has started."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    async def fall(self) -> None:
        """Die, and come back after two seconds."""
        self.kills += 1
        self.kill()
        await asyncio.sleep(2)
        await asyncio.to_thread(self.start)


# --- leaks ---

LOOK = """(async () => {
  const traces = {};
  const say = (kind, value) => { if (value) traces[kind] = String(value); };
  say('cookies', document.cookie);
  say('local storage', localStorage.length);
  say('session storage', sessionStorage.length);
  say('window.name', name);
  say('databases', (await indexedDB.databases()).length);
  say('caches', (await caches.keys()).length);
  say('service workers', (await navigator.serviceWorker.getRegistrations()).length);
  for (const permission of ['geolocation', 'notifications', 'clipboard-read', 'camera'])
    try {
      const asked = await navigator.permissions.query({name: permission});
      say('permissions', asked.state === 'granted' && permission);
    } catch (error) {}
  say('credentials', (await (await fetch('/auth?quiet')).text()) === 'in');
  say('history', history.length > 2 && history.length);
  return traces;
})()"""
LEAVE = """(async () => {
  document.cookie = 'leak=1; max-age=9999';
  localStorage.leak = sessionStorage.leak = name = 'leak';
  await new Promise(done => { const open = indexedDB.open('leak'); open.onsuccess = open.onerror = done; });
  await caches.open('leak');
  const registering = navigator.serviceWorker.register('/worker.js').catch(() => 0);
  await Promise.race([registering, new Promise(done => setTimeout(done, 500))]);
  try { Notification.requestPermission(); navigator.geolocation.getCurrentPosition(() => 0); } catch (error) {}
})()"""
TRACES = (
    "cookies, storage, databases, caches, credentials, keys, permissions, `window.name`, service workers, history and "
    "notices of downloads"
)
"""What is looked for, in words."""
KEYS = """<p id=p>-</p><script>onkeydown = e => {
  if (e.key === 'q') p.textContent = [e.ctrlKey, e.shiftKey, e.altKey, e.metaKey].join(' ');
}</script><a href=/file download>file</a>"""


class _Witness(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        return

    def do_GET(self) -> None:
        known = "authorization" in {key.lower() for key in self.headers}
        headers = {"Content-Type": "text/html", "Cache-Control": "no-store"}
        status, body = 200, KEYS
        if self.path == "/auth?quiet":
            body = "in" if known else "out"
        elif self.path == "/auth" and not known:
            status, headers["WWW-Authenticate"] = 401, 'Basic realm="auth"'
        elif self.path == "/worker.js":
            headers["Content-Type"], body = "text/javascript", "onfetch = () => 0"
        elif self.path == "/file":
            headers |= {"Content-Disposition": "attachment; filename=leak.txt"}
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def witness() -> Iterator[str]:
    """The address of the site that looks for leaks; `localhost` is a secure context, as workers and caches want."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Witness) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://witness.localhost:{server.server_port}"
        server.shutdown()


# --- episodes ---


@dataclass
class Day:
    """What happened so far."""

    ends: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    leaks: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    """What episodes have left, as the same look finds it within them."""
    per_app: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    notices: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    steps: int = 0
    checks: int = 0


async def look_for_leaks(session: ChromiumSession, base: str, day: Day, chance: random.Random) -> None:
    """What an earlier episode has left, and then everything that this one can leave."""
    opened = session._open
    assert opened is not None
    if await opened.context.cookies():
        day.leaks["cookies"] += 1
    page = await session.observe()
    if page.notice:
        day.leaks[f"notice: {page.notice[:80]}"] += 1
    await session.goto(f"{base}/")
    traces = await session.evaluate("last", LOOK)
    await session.act(Action("press", text="q"))
    held_down = await session.evaluate("last", "p.textContent")
    if held_down != "false false false false":
        traces["keys"] = held_down
    day.checks += 1
    for kind in traces:
        day.leaks[kind] += 1
    await session.evaluate("last", LEAVE)
    # Within the episode it is there: so the look can find it.
    day.left.update((await session.evaluate("last", LOOK)).keys())
    await session.act(Action("press", text=chance.choice(["Control+foo", "Shift+", "Alt+Meta+nothing"])))
    if chance.random() < 0.25:
        await session.goto(base.replace("://", "://u:p@") + "/auth")
    if chance.random() < 0.25:
        await session.goto(f"{base}/file")


def choose(page: Observation, chance: random.Random) -> Action:
    """A random action that a policy could take on this page."""
    nodes = [node for node in page.nodes if node.role not in ("text", "heading", "status")]
    others = [
        Action("go_back"), Action("go_forward"), Action("scroll", text=chance.choice(["down", "up"])),
        Action("new_tab"), Action("close_tab"), Action("tab_focus", index=chance.randrange(3)), Action("wait"),
        Action("press", text=chance.choice(["Enter", "Tab", "End", "Escape", "Control+a"])),
    ]  # fmt: skip
    if not nodes or chance.random() < 0.15:
        return chance.choice(others)
    node = chance.choice(nodes)
    if node.role == "textbox":
        return Action("type", node.id, chance.choice(["a", "12", "it's", "2024-02-29"]), chance.random() < 0.3)
    options = dict(node.props).get("options")
    if options:
        return Action("select", node.id, chance.choice(options.split("|")))
    return Action("hover", node.id) if chance.random() < 0.05 else Action("click", node.id)


async def kill_something(pool: BrowserPool, session: ChromiumSession, site: Site, kind: str, tasks: set[Any]) -> None:
    """Kill the renderer of the current page, the browser, or the application."""
    running = pool._seats[0].running
    if kind == "renderer" and session._open is not None:
        # It never answers.
        session._open.current._start("Page.crash", {})
        await asyncio.sleep(0.1)
    elif kind == "browser" and running is not None:
        with suppress(ProcessLookupError):
            os.kill(running.browser_pid, signal.SIGKILL)
    elif kind == "site":
        falling = asyncio.get_running_loop().create_task(site.fall())
        tasks.add(falling)
        await asyncio.sleep(0.1)


def _reason(error: Exception) -> str:
    """A reason without what differs from case to case."""
    return re.sub(r"0x[0-9a-f]+|\d+|http\S+", "#", str(error).splitlines()[0])[:120] if str(error) else ""


async def play(
    session: ChromiumSession, site: Site, base: str, pool: BrowserPool, day: Day, chance: random.Random, kill: str
) -> None:
    """One episode: look for leaks, then act at random."""
    falls: set[Any] = set()
    fatal_step = chance.randrange(STEPS) if kill else -1
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await session.reset()
            await look_for_leaks(session, base, day, chance)
            await session.goto(site.url)
            page = await session.observe()
            for step in range(STEPS):
                if step == fatal_step:
                    day.kills[kill] += 1
                    await kill_something(pool, session, site, kill, falls)
                refusal = await session.act(choose(page, chance))
                day.steps += 1
                if refusal:
                    day.refusals[_reason(Exception(re.sub(r"'[^']*'", "''", refusal)))] += 1
                page = await session.observe()
                if page.notice:
                    day.notices[_reason(Exception(re.sub(r"'[^']*'", "''", page.notice)))] += 1
            if chance.random() < 0.3:
                await session.close()
        day.ends["played"] += 1
    except BrowserError as error:
        day.ends["lost"] += 1
        reason = _reason(error)
        day.reasons[reason] += 1
        if not reason:
            day.unexplained.append(f"{site.name}: BrowserError without words")
    except Exception as error:
        day.ends["error"] += 1
        day.unexplained.append(f"{site.name}: {type(error).__name__}: {str(error)[:300]}")
    finally:
        day.per_app[site.name] += 1
        if falls:
            await asyncio.gather(*falls)


async def live(options: argparse.Namespace, sites: Sequence[Site], downloads: Path) -> Day:
    """All episodes, several sessions at once."""
    day = Day()
    chance = random.Random(options.seed)
    plans = []
    for episode in range(options.episodes):
        kill = chance.choice(["renderer", "browser", "site"]) if chance.random() < options.kills else ""
        plans.append((episode, sites[episode % len(sites)], kill))
    waiting = iter(plans)
    evening = time.monotonic() + 60 * options.minutes
    with witness() as base:
        async with BrowserPool(hosts=LOOPBACK, workers=options.sessions, downloads=downloads, recycle=100) as pool:

            async def work() -> None:
                session = await pool.session()
                for episode, site, kill in waiting:
                    if time.monotonic() > evening:
                        break
                    await play(session, site, base, pool, day, random.Random(f"{options.seed} {episode}"), kill)
                    if (episode + 1) % 20 == 0:
                        sys.stderr.write(f"{sum(day.ends.values())} of {options.episodes} episodes\n")
                await session.close()

            await asyncio.gather(*(work() for _ in range(options.sessions)))
            report("browsers", launches=pool.launches, left_open=len(pool._retired))
    return day


def summary(day: Day, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """What is printed."""
    return {
        "episodes": sum(day.ends.values()), "sessions": options.sessions, "steps": day.steps, "seconds": round(seconds),
        "ends": dict(day.ends), "kills": dict(day.kills), "lost_by_reason": dict(day.reasons),
        "lost_without_reason": day.unexplained, "leak_checks": day.checks, "left_by_episodes": dict(day.left),
        "leaks": dict(day.leaks),
        "applications": dict(day.per_app), "notices": dict(day.notices.most_common(8)),
        "refusals": dict(day.refusals.most_common(8)),
    }  # fmt: skip


def markdown(day: Mapping[str, Any]) -> str:
    """A summary as the table of docs/web.md."""
    kills, ends = Counter(day["kills"]), Counter(day["ends"])
    reasons: Counter[str] = Counter()
    for reason, count in day["lost_by_reason"].items():
        # What was under way when it came, in parentheses, differs from case to case.
        reasons[reason.partition(" (")[0] or "no words"] += count
    lost = f"{ends['lost']}, of at most {kills['browser'] * day['sessions']} that were open when a browser was killed"
    rows = {
        "episodes (actions)": f"{day['episodes']:,} ({day['steps']:,})",
        "killed: renderers, browsers, applications": f"{kills['renderer']}, {kills['browser']}, {kills['site']}",
        "episodes lost": lost,
        "their reasons": "; ".join(f'"{reason}" {count}' for reason, count in reasons.most_common()) or "none",
        "episodes lost without a reason": len(day["lost_without_reason"]),
        f"checks for {TRACES}": f"{day['leak_checks']:,}",
        "leaks": sum(day["leaks"].values()),
    }
    lines = [f"| {what} | {number} |\n" for what, number in rows.items()]
    return "".join(["| what | number |\n", "| --- | --- |\n", *lines])


def main() -> int:
    """Play the day and print what happened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--kills", type=float, default=0.06, help="share of episodes in which something is killed")
    parser.add_argument("--minutes", type=float, default=600, help="no episode begins later")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--apps", default=",".join(APPS), help=f"of {', '.join(APPS)}")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/web.md too")
    options = parser.parse_args()
    unknown = set(options.apps.split(",")) - set(APPS)
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; choose from {', '.join(APPS)}")
    home = Path(tempfile.mkdtemp(prefix="dynaweb-day-"))
    sites: list[Site] = []
    try:
        with ThreadPoolExecutor(2) as threads:
            sites.extend(threads.map(lambda name: Site(name, home), options.apps.split(",")))
        begun = time.perf_counter()
        day = asyncio.run(live(options, sites, home / "downloads"))
        facts = summary(day, time.perf_counter() - begun, options)
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
        if options.markdown:
            sys.stdout.write("\n" + markdown(facts))
    finally:
        for site in sites:
            site.kill()
        shutil.rmtree(home, ignore_errors=True)
    return 1 if day.unexplained or day.leaks else 0


if __name__ == "__main__":
    sys.exit(main())
