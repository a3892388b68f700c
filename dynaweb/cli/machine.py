"""`dynaweb setup`, `doctor` and `web serve`: what this machine has and lacks, and its browsers for others."""

from __future__ import annotations

from typing import Annotated

import typer

from dynaweb.cli import options as o
from dynaweb.errors import MissingError

web_app = o.group("Browsers for sessions of other machines.")


def setup(
    system: Annotated[
        bool,
        typer.Option(
            "--system/--no-system",
            help="As root, install with apt-get what the browser needs of the system, or leave it alone.",
        ),
    ] = True,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Find a Chromium, or install one, and start it once. Nothing else needs setting up.

    Root on Debian or Ubuntu, as in a container, gets the libraries that the browser needs, too; what is installed, and
    how, is said beforehand. Everybody else is told the one command to type where libraries are missing.
    """
    from dynaweb.cli.output import emit
    from dynaweb.web.chromium.install import set_up

    chromium, version = set_up(system=system, tell=lambda text: typer.echo(text, err=True))
    text = f"Chromium {version}: {chromium.path} (from {chromium.origin})"
    emit({"path": chromium.path, "origin": chromium.origin, "version": version}, text, as_json=as_json)


def doctor(
    recipe: o.Recipe = "dynaweb",
    sets: o.Set = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Check the installation: packages, plugins, browser, model, cache. Exit code 3 when something is missing.

    The browser is started once. A recipe or `--set web.browser=...` says which one.
    """
    from dynaweb.cli.output import emit, table
    from dynaweb.commands.doctor import examine

    o.load_plugins(block, warn=False)
    checks = examine(recipe, sets or ())
    rows = [(one.name, one.status, one.detail) for one in checks]
    emit(checks, table(("check", "status", "detail"), rows), as_json=as_json)
    lacking = [check.name for check in checks if check.status == "missing"]
    if lacking:
        raise MissingError(f"not ready: {', '.join(lacking)}")


@web_app.command("serve")
def serve(
    sessions: Annotated[
        int, typer.Option("--sessions", min=1, help="Browsers that are kept ready; each serves one client at a time.")
    ] = 1,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 = any free one.")] = 9300,
    browser: Annotated[
        str, typer.Option("--browser", metavar="PATH", help="A Chromium; found as `dynaweb doctor` says without.")
    ] = "",
    debug: o.Debug = False,
) -> None:
    """Offer browsers to runs on other machines, which name them with `--set web.endpoint=http://HOST:PORT`.

    A run plays all its episodes in one of these browsers, and what that connects to goes back through the run's own
    filter of hosts. A browser whose client has gone, or that dies, is replaced.
    On another --host than this machine's own, each call needs a token: that in DYNAWEB_SERVE_TOKEN, or a new one.
    """
    from dynaweb import api
    from dynaweb.cli.play import serving_token
    from dynaweb.serve.gate import is_local

    token = "" if is_local(host) else serving_token()
    api.serve_browsers(sessions=sessions, host=host, port=port, token=token, browser=browser)
