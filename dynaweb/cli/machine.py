"""`dynaweb setup` and `dynaweb doctor`: what this machine has, and what it lacks."""

from __future__ import annotations

from dynaweb.cli import options as o
from dynaweb.errors import MissingError


def setup(as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Find a Chromium, or install one, and start it once. Nothing else needs setting up."""
    from dynaweb.cli.output import emit
    from dynaweb.web.chromium.install import install, try_out

    chromium = install()
    version = try_out(chromium)
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
