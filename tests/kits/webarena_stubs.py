"""Small sites that stand for WebArena's: a login, a shop's interface, a forum's form, todos, a reset server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flask import Flask, jsonify, redirect, request
from werkzeug.serving import make_server

PAGE = "<!doctype html><title>{0}</title><h1>{0}</h1>{1}"
LOGIN = (
    "<form method=post action=/login><input name=user><input name=word type=password><button>Sign in</button></form>"
)


@dataclass
class Stub:
    """What the sites were asked; `valid` holds the cookies that are logged in; `looks` counts those at the account,
    `polls` those at the reset."""

    url: str = ""
    valid: set[str] = field(default_factory=set)
    logins: int = 0
    looks: int = 0
    polls: int = 0
    failure: str = ""
    """What the reset server says instead."""
    headers: list[str] = field(default_factory=list)
    posts: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def stub_sites() -> Iterator[Stub]:
    """All of them on one port of 127.0.0.1."""
    state = Stub()
    server = make_server("127.0.0.1", 0, _app(state), threaded=True)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _app(state: Stub) -> Flask:
    app = Flask("stub")

    @app.before_request
    def look() -> None:
        state.headers.append(request.headers.get("X-Auto-Login", ""))

    for add in (_account, _pages, _reset, _shop):
        add(app, state)
    return app


def _account(app: Flask, state: Stub) -> None:
    """A login that sets a cookie, and a page behind it."""

    @app.route("/login", methods=["GET", "POST"])
    def login() -> Any:
        if request.method == "GET":
            return PAGE.format("Login", LOGIN)
        if (request.form["user"], request.form["word"]) != ("ann", "secret"):
            return PAGE.format("Wrong", LOGIN)
        state.logins += 1
        cookie = f"session-{state.logins}"
        state.valid.add(cookie)
        answer = redirect("/")
        answer.set_cookie("session", cookie)
        return answer

    @app.get("/account")
    def account() -> Any:
        state.looks += 1
        if request.cookies.get("session") not in state.valid:
            return redirect("/login")
        return PAGE.format("Account", "<p>Hello Ann</p>")


def _pages(app: Flask, state: Stub) -> None:
    """Pages for everybody, and a forum's form."""

    @app.get("/")
    def home() -> str:
        return PAGE.format(
            "Home", "<a href=/dashboard/todos>Todos</a> <a href=/account>Account</a> <a href=/f/1>Forum</a>"
        )

    @app.get("/dashboard/todos")
    def todos() -> str:
        return PAGE.format("Todos", "<p>Nothing to do</p>")

    @app.get("/f/<int:number>")
    def forum(number: int) -> str:
        return PAGE.format(
            "Forum",
            "<form method=post action=/submit/consoles><input aria-label=Title name='submission[title]'>"
            "<input type=hidden name='submission[forum]' value=10039><button>Post</button></form>",
        )

    @app.post("/submit/consoles")
    def submit() -> Any:
        state.posts.append(dict(request.form))
        return redirect("/f/1")


def _reset(app: Flask, state: Stub) -> None:
    """A server that resets the sites: done at the fourth look."""

    @app.get("/reset")
    def reset() -> str:
        state.polls = 1
        return "started"

    @app.get("/status")
    def status() -> str:
        state.polls += 1
        return state.failure or ("Ready for duty!" if state.polls > 3 else "resetting")


def _shop(app: Flask, state: Stub) -> None:
    """The shop's interface for programs."""

    @app.post("/rest/default/V1/integration/admin/token")
    def token() -> Any:
        return jsonify("token-1")

    @app.get("/rest/V1/orders")
    def orders() -> Any:
        return jsonify({"items": [{"increment_id": "000000190"}]})

    @app.get("/rest/V1/products/<sku>/reviews")
    def reviews(sku: str) -> Any:
        if request.headers.get("Authorization") != "Bearer token-1":
            return "no", 401
        return jsonify([{"nickname": "Old", "ratings": []}, {"nickname": "Ann", "ratings": [{"percent": 80}]}])
