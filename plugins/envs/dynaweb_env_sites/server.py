"""The web application of all embedded sites, and the server that runs it on loopback.

One Flask application: the Host header names the site, the header `X-Dynaweb-World` the world (see `WorldStore`). Every
site is a blueprint below `/<site>`; that prefix is put before the path on the way in, so users never see it.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flask import Flask, abort, g, render_template, request
from waitress import create_server  # type: ignore[import-untyped]
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.wrappers import Response

from dynaweb.errors import InfrastructureError
from dynaweb.web.session import UrlMap
from dynaweb_env_sites.base import Site, render
from dynaweb_env_sites.content import slug
from dynaweb_env_sites.world_store import DEFAULT_TOKEN, HEADER, WorldStore

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

SITE_NAMES = ("shop", "forum", "tracker")
HELD_OUT = ("mail",)
"""Sites that no model of this package was pre-trained on and no default uses, to ask what a result owes to that."""
CSS_AGE = 86_400
"""Seconds that a browser may keep the style sheet."""


def load_sites() -> dict[str, Site[Any]]:
    """All sites by name; each module `dynaweb_env_sites.<name>.pages` has a constant `SITE`."""
    return {name: import_module(f"dynaweb_env_sites.{name}.pages").SITE for name in (*SITE_NAMES, *HELD_OUT)}


class SitesApp(Flask):
    """Sends a request to the site that its Host header names, with that world's lock held."""

    def __init__(self, store: WorldStore) -> None:
        super().__init__(__name__, static_folder=None)
        self.store = store
        self._hosts = {site.host: name for name, site in store.sites.items()}
        self.jinja_options = {"trim_blocks": True, "lstrip_blocks": True}
        self.jinja_env.filters["address"] = slug
        for name, site in store.sites.items():
            self.register_blueprint(site.pages, url_prefix=f"/{name}")
            self.add_url_rule(f"/{name}/style.css", endpoint=f"{name}.css", view_func=_style)
        self.before_request(self._enter)
        self.register_error_handler(HTTPException, _error_page)

    def wsgi_app(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """See `Flask.wsgi_app`."""
        host = environ.get("HTTP_HOST", "").partition(":")[0].lower()
        environ = {**environ, "PATH_INFO": f"/{self._hosts.get(host, 'unknown')}{environ.get('PATH_INFO') or '/'}"}
        world = self.store.get(environ.get("HTTP_" + HEADER.upper().replace("-", "_"), DEFAULT_TOKEN))
        if world is None:
            return Response("This world does not exist (any more).", 410)(environ, start_response)
        environ["dynaweb.world"] = world
        with world.lock:
            return super().wsgi_app(environ, start_response)

    def _enter(self) -> None:
        name = request.path.split("/")[1]
        if name not in self.store.sites:
            abort(Response(f"No site here. There are: {', '.join(sorted(self._hosts))}.", 404))
        g.site = self.store.sites[name]
        g.state = request.environ["dynaweb.world"].state(name)


def create_app(store: WorldStore | None = None) -> SitesApp:
    """The WSGI application of all sites, over a store of worlds (default: a new one)."""
    return SitesApp(store if store is not None else WorldStore(load_sites()))


def url_map(store: WorldStore, port: int) -> UrlMap:
    """Canonical addresses have no port: `http://shop.localhost:8123` is `http://shop.localhost`."""
    hosts = [site.host for site in store.sites.values()]
    return UrlMap({f"http://{host}:{port}": f"http://{host}" for host in hosts})


def _style() -> Response:
    return Response(render_template("style.css"), mimetype="text/css", headers={"Cache-Control": f"max-age={CSS_AGE}"})


def _error_page(error: HTTPException) -> Response | HTTPException:
    if error.response is not None or "site" not in g:
        return error
    missing = isinstance(error, NotFound)
    heading, text = ("Page not found", "This page does not exist") if missing else (error.name, "This did not work")
    return Response(render("error.html", heading=heading, text=text, code=error.code), error.code, mimetype="text/html")


class SitesServer:
    """Serves the sites from a daemon thread. `port` 0 takes a free one; `with` starts and stops it."""

    def __init__(self, app: SitesApp, *, port: int = 0, threads: int = 4) -> None:
        self.app = app
        self._wanted = port
        self._threads = threads
        self._server: Any = None
        self._thread: threading.Thread | None = None
        # waitress' sockets; ours, so that `stop` can close the connections that browsers keep open.
        self._sockets: dict[int, Any] = {}

    @property
    def port(self) -> int:
        """The port that is listened on. Raises `InfrastructureError` before `start`."""
        if self._server is None:
            raise InfrastructureError("The embedded sites are not being served. Call start() first.")
        return int(self._server.effective_port)

    @property
    def urls(self) -> UrlMap:
        """Real and canonical addresses of the running server."""
        return url_map(self.app.store, self.port)

    def start(self) -> SitesServer:
        """Listen and serve; a second call changes nothing. Raises `InfrastructureError` when the port is taken."""
        if self._server is None:
            self._server = self._listen()
            self._thread = threading.Thread(target=self._server.run, name="dynaweb-sites", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Close all connections and free the port; a second call changes nothing."""
        if self._server is None or self._thread is None:
            return
        server, self._server = self._server, None
        connections: list[Any] = []
        server.trigger.pull_trigger(lambda: connections.extend(self._empty_map()))
        self._thread.join(timeout=5)
        # Threads that still answer need the trigger, so sockets are closed last.
        server.task_dispatcher.shutdown()
        for connection in connections:
            connection.close()

    def __enter__(self) -> SitesServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _listen(self) -> Any:
        options: Mapping[str, Any] = {"threads": self._threads, "connection_limit": 1000, "asyncore_use_poll": True}
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # waitress would start its threads first, and leave them behind when the port is taken.
            listener.bind(("127.0.0.1", self._wanted))
        except OSError as error:
            listener.close()
            raise InfrastructureError(f"The embedded sites could not be started: {self._why(error)}.") from error
        # A request that waits for a thread is no news when many browser contexts load pages at once.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        return create_server(self.app, map=self._sockets, sockets=[listener], **options)

    def _empty_map(self) -> list[Any]:
        """Runs in the server's thread, whose loop ends when the map is empty."""
        connections = list(self._sockets.values())
        self._sockets.clear()
        return connections

    def _why(self, error: OSError) -> str:
        if error.errno == errno.EADDRINUSE:
            return f"port {self._wanted} is taken. Use another one, or 0 for any free port (env.port)"
        return f"cannot listen on 127.0.0.1:{self._wanted}: {error.strerror}"
