"""Runs in Roundup's own environment: makes the tracker once, then serves it with a copy for each visitor.

    python serve.py make HOME SEED            # the tracker with its content, in an empty folder
    python serve.py serve HOME PORT           # on 127.0.0.1, until it is terminated
    python serve.py start HOME PORT           # the same in the background; prints the number of the process

A visitor is a browsing context: the first answer sets a cookie, and all requests with it see a copy of their own of the
tracker as it was made. So episodes that change issues run side by side, each starts from the same state, and nothing
has to be reset between them. `GET /reset` drops all copies and `GET /status` says when that is done, as the reset
server of WebArena's images does.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socketserver
import sqlite3
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import roundup
from content import SEED, Content, content
from roundup import configuration, date, init, instance, password
from roundup.cgi.wsgi_handler import RequestDispatcher

COOKIE = "visitor"
ADDRESS = "http://tracker.invalid/"
"""Stands for the address until the port is known."""
MOST = 128
"""Copies that are kept; beyond that the one that was used least recently goes."""
CREATED = date.Date("2024-05-06.09:00:00")
"""When everything was made, so that pages are the same whenever the tracker is."""
_SHARED = ("html", "detectors", "extensions", "schema.py", "initial_data.py", "lib")

_LAST = '                status=Link("status"))'
_CLASS = 'issue = IssueClass(db, "issue",'
_PERMISSION = "for cl in 'priority', 'status':\n    db.security.addPermissionToRole('User', 'View', cl)"
_ROW = '<tr tal:condition="context/is_edit_ok">\n <th i18n:translate="">Change Note</th>'
_MENU = (
    '<tr>\n <th i18n:translate="">Milestone</th>\n'
    ' <td tal:content="structure context/milestone/menu">milestone</td>\n</tr>\n\n'
)

Start = Callable[..., Any]


def make(home: Path, seed: int) -> None:
    """Install Roundup's classic tracker in a folder, add milestones to it, and fill it."""
    template = Path(roundup.__file__).parents[4] / "share" / "roundup" / "templates" / "classic"
    init.install(str(home), str(template))
    # Nobody is written to.
    (home / "detectors" / "nosyreaction.py").unlink()
    _add_milestones(home)
    config = configuration.CoreConfig()
    config["TRACKER_HOME"] = str(home)
    config["TRACKER_NAME"] = "Tracker"
    config["TRACKER_WEB"] = ADDRESS
    config["MAIL_DOMAIN"] = "localhost"
    config["DATABASE"] = "db"
    config["RDBMS_BACKEND"] = "sqlite"
    config["TIMEZONE"] = "UTC"
    # The password comes with every request, and hashing one takes as long as ten pages.
    config["WEB_MIGRATE_PASSWORDS"] = "no"
    config.save(str(home / config.INI_FILE))
    tracker = instance.open(str(home))
    tracker.init(password.Password(secrets.token_hex(16), config=config))
    database = tracker.open("admin")
    _fill(database, content(seed))
    database.commit()
    database.close()
    _date(home / "db" / "db")


def _add_milestones(home: Path) -> None:
    """A class `milestone` and a field of issues, as Roundup's manual adds one (docs/customizing)."""
    _replace(home / "schema.py", _LAST, f'{_LAST[:-1]},\n                milestone=Link("milestone"))')
    new = 'milestone = Class(db, "milestone",\n                name=String(),\n                due=String())\n'
    _replace(home / "schema.py", _CLASS, f'{new}milestone.setkey("name")\n\n{_CLASS}')
    _replace(home / "schema.py", _PERMISSION, _PERMISSION.replace("'status'", "'status', 'milestone'"))
    _replace(home / "html" / "issue.item.html", _ROW, f"{_MENU}{_ROW}")


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        sys.exit(f"{path.name} of this Roundup ({roundup.__version__}) has no {old!r}; install 'roundup>=2.5,<3'")
    path.write_text(text.replace(old, new), encoding="utf-8")


def _fill(database: Any, wanted: Content) -> None:
    config = database.config
    people = {
        user.name: database.user.create(
            username=user.name,
            password=password.Password(user.name, scheme="plaintext", config=config),
            address=f"{user.name}@tracker.test",
            realname=user.real_name,
            phone=user.phone,
            roles="User",
        )
        for user in wanted.users
    }
    milestones = {one.name: database.milestone.create(name=one.name, due=one.due) for one in wanted.milestones}
    keywords = {name: database.keyword.create(name=name) for name in wanted.keywords}
    for issue in wanted.issues:
        author = people[issue.creator]
        database.setCurrentUser(issue.creator)
        note = database.msg.create(content=issue.note, author=author, date=CREATED, summary=issue.note)
        database.issue.create(
            title=issue.title,
            priority=database.priority.lookup(issue.priority),
            status=database.status.lookup(issue.status),
            assignedto=people.get(issue.assignee),
            keyword=[keywords[issue.keyword]],
            milestone=milestones[issue.milestone],
            messages=[note],
            nosy=[author],
        )
    database.setCurrentUser("admin")


def _date(path: Path) -> None:
    """Set all times to `CREATED`, a minute apart in the order of the numbers, which is also that of lists."""
    with sqlite3.connect(path) as base:
        tables = [row[0] for row in base.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            columns = {row[1] for row in base.execute(f"pragma table_info({table})")}
            for column in columns & {"_creation", "_activity"}:
                rows = base.execute(f"select id from {table}").fetchall()
                for (number,) in rows:
                    when = CREATED + date.Interval(f"+ 0:{int(number):02}")
                    base.execute(f"update {table} set {column} = ? where id = ?", (when.serialise(), number))
            if table.endswith("__journal"):
                base.execute(f"update {table} set date = ?", (CREATED.serialise(),))


class Visitors:
    """The copies of a tracker, by the cookie of each visitor."""

    def __init__(self, home: Path, url: str) -> None:
        self._home = home
        # Its paths are relative to each copy.
        self._config = (home / "config.ini").read_text(encoding="utf-8").replace(ADDRESS, url)
        self._folder = Path(tempfile.mkdtemp(prefix="roundup-"))
        self._lock = threading.Lock()
        self._copies: OrderedDict[str, RequestDispatcher] = OrderedDict()

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        """Answer a request from the visitor's own copy."""
        path = environ["PATH_INFO"]
        if path in ("/reset", "/status"):
            if path == "/reset":
                self.reset()
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b"Ready for duty!"]
        cookies = SimpleCookie(environ.get("HTTP_COOKIE", ""))
        known = cookies[COOKIE].value if COOKIE in cookies else ""
        name, copy = self._copy(known)

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            mark = [] if name == known else [("Set-Cookie", f"{COOKIE}={name}; Path=/; HttpOnly")]
            return start_response(status, [*headers, *mark], *rest)

        answer: Iterable[bytes] = copy(environ, start)
        return answer

    def reset(self) -> None:
        """Forget all copies: everybody finds the tracker as it was made."""
        with self._lock:
            self._copies.clear()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()

    def close(self) -> None:
        """Remove all copies."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _copy(self, known: str) -> tuple[str, RequestDispatcher]:
        with self._lock:
            if known in self._copies:
                self._copies.move_to_end(known)
                return known, self._copies[known]
            name = secrets.token_hex(8)
            home = self._folder / name
            home.mkdir()
            for part in _SHARED:
                if (self._home / part).exists():
                    (home / part).symlink_to(self._home / part)
            shutil.copytree(self._home / "db", home / "db")
            (home / "config.ini").write_text(self._config, encoding="utf-8")
            self._copies[name] = RequestDispatcher(str(home))
            while len(self._copies) > MOST:
                oldest, _ = self._copies.popitem(last=False)
                shutil.rmtree(self._folder / oldest, ignore_errors=True)
            return name, self._copies[name]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def serve(home: Path, port: int) -> None:
    """Serve until the process is terminated."""
    visitors = Visitors(home, f"http://localhost:{port}/")
    with make_server("127.0.0.1", port, visitors, server_class=_Server, handler_class=_Quiet) as server:
        try:
            server.serve_forever()
        finally:
            visitors.close()


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.umask(0o077)
    command, folder, number = sys.argv[1:4]
    if command == "make":
        make(Path(folder), int(number or SEED))
    elif command == "serve":
        serve(Path(folder), int(number))
    else:
        import subprocess

        # In a session of its own, so that Ctrl-C in the terminal of a run does not end it.
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", folder, number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=open(f"{folder}.log", "w", encoding="utf-8"),  # noqa: SIM115  (it is the server's from now on)
            start_new_session=True,
        )
        print(server.pid)
