"""`dynaweb plugins list|show|check`, `dynaweb new` and `dynaweb init`: what is installed, and how to begin."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynaweb.cli import options as o

if TYPE_CHECKING:
    from dynaweb.plugin.discovery import PluginStatus
    from dynaweb.plugin.registry import Plugins

plugins_app = o.group("Plugins that are installed.")
new_app = o.group("Begin something of your own.")

Name = Annotated[str, typer.Argument(help="Name of a plugin, or KIND/NAME such as wm/delta.")]
MaybeName = Annotated[str | None, typer.Argument(help="Name of a plugin, or KIND/NAME; default: every one.")]
Project = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the project; default: this one.")]
Base = Annotated[str, typer.Option("--recipe", metavar="NAME", help="The shipped recipe to begin with.")]


@plugins_app.command("list")
def list_plugins(block: o.Block = None, as_json: o.Json = False, debug: o.Debug = False) -> None:
    """List every plugin: kind, name, summary, package and version, status."""
    from dynaweb.cli.output import emit, table

    statuses = o.load_plugins(block, warn=False).statuses()
    rows = [
        (one.kind or "-", one.name, f"{one.package} {one.version}", one.status, one.cause or one.summary)
        for one in statuses
    ]
    emit(statuses, table(("kind", "name", "package", "status", "summary"), rows), as_json=as_json)


@plugins_app.command("show")
def show_plugin(name: Name, block: o.Block = None, as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Show one plugin: where it comes from, what it needs, and every setting with its default."""
    from dynaweb.cli.output import emit

    loaded = o.load_plugins(block, warn=False)
    rows = [_described(loaded, status) for status in _named(loaded, name)]
    emit(rows if len(rows) > 1 else rows[0], "\n\n".join(_text(one) for one in rows), as_json=as_json)


@plugins_app.command("check")
def check(name: MaybeName = None, block: o.Block = None, as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Import the classes of plugins, compare their methods with what their kind needs, and say which can be used.

    Exit code 3 when one that was asked for cannot."""
    from dynaweb.cli.output import emit, table
    from dynaweb.errors import MissingError

    loaded = o.load_plugins(block, warn=False)
    statuses = loaded.statuses() if name is None else _named(loaded, name)
    checked = [(status, *_check(loaded, status)) for status in statuses]
    rows = [{"kind": s.kind, "name": s.name, "status": state, "cause": cause} for s, state, cause in checked]
    cells = [(s.kind or "-", s.name, f"{s.package} {s.version}", state, cause) for s, state, cause in checked]
    emit(rows, table(("kind", "name", "package", "status", "cause"), cells), as_json=as_json)
    # A plugin whose extra is not installed is nobody's fault, until it is asked for.
    bad = [s.name for s, state, _ in checked if state == "broken" or (name is not None and state != "ok")]
    if bad:
        raise MissingError(f"cannot be used: {', '.join(bad)}")


@new_app.command("plugin")
def new_plugin(
    name: Annotated[str, typer.Argument(help="Its name, as in --wm NAME: lower-case letters, digits and '-'.")],
    kind: Annotated[
        str, typer.Option("--kind", help="world-model (wm), optimizer (opt), reward, env, observer, engine or prompt.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder; default: named like the package.")
    ] = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Write a package with a working plugin, its entry point, and tests that pass."""
    from dynaweb import scaffold
    from dynaweb.cli.output import emit

    files = scaffold.new_plugin(kind, name, out)
    root = files[0].parent
    emit({"folder": root, "files": files}, "\n".join(map(str, files)), as_json=as_json)
    if not as_json:
        flags = scaffold.KINDS[scaffold.full_kind(kind)].flags.format(name=name)
        typer.echo(
            f"\nnext: cd {quote(str(root))} && pip install -e '.[test]' && pytest && dynaweb run smoke {flags}",
            err=True,
        )


@new_app.command("recipe")
def new_recipe(
    name: Annotated[str, typer.Argument(help="Its name; the file is NAME.toml.")],
    model: o.Model = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", metavar="FILE", help="Tasks in WebArena's format: a list, or a folder.")
    ] = None,
    eval_tasks: Annotated[
        str | None,
        typer.Option("--eval-tasks", metavar="FILE", help="Tasks for the evaluation; default: some of --tasks, apart."),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", metavar="NAME=ADDRESS", help="A site, as shop=http://my-host:7770. Repeatable."),
    ] = None,
    demos: Annotated[
        list[str] | None,
        typer.Option(
            "--demos", metavar="FILE[:FORMAT]", help="Trajectories; with FORMAT they are imported. Repeatable."
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", min=0, help="GPUs to run on, 0 = a CPU; default: those here.")
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="MACHINE", help="The machine to run on, such as 8xh100 or laptop.")
    ] = None,
    trial: Annotated[bool, typer.Option("--trial", help="Tiny counts: every stage runs once.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder; default: here.")] = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Write a recipe for a model, sites and trajectories of your own; on a terminal it asks for what is left out."""
    import sys

    from dynaweb import api
    from dynaweb.cli.output import emit

    o.load_plugins(block)
    written = api.new_recipe(
        name,
        model=model or "",
        tasks=tasks or "",
        eval_tasks=eval_tasks or "",
        sites=site or (),
        demos=demos or (),
        gpus=gpus,
        on=on or "",
        trial=trial,
        folder=out,
        ask=o.line_by_stderr if sys.stdin.isatty() else None,
    )
    emit(written, str(written), as_json=as_json)
    if not as_json:
        notes = "".join(f"note: {note}\n" for note in written.notes)
        typer.echo(f"\n{notes}next: dynaweb run {written.files[0]} --dry-run, then: {written.run}", err=True)


def init(folder: Project = Path("."), base: Base = "dynaweb", as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Begin a project: a recipe of its own, an ablation, a notebook, and a .gitignore."""
    from dynaweb import api
    from dynaweb.cli.output import emit

    files = api.new_project(folder, base=base)
    emit({"folder": folder, "files": files}, "\n".join(map(str, files)), as_json=as_json)
    if not as_json:
        there = "" if folder.resolve() == Path.cwd() else f"cd {quote(str(folder))} && "
        typer.echo(f"\nnext: {there}dynaweb run {files[0].name} --dry-run, then without it", err=True)


def _named(loaded: Plugins, name: str) -> list[PluginStatus]:
    from dynaweb.errors import MissingError, hint

    kind, _, short = name.rpartition("/")
    statuses = loaded.statuses()
    matches = [one for one in statuses if one.name == short and kind in ("", one.kind)]
    if not matches:
        raise MissingError(f"no plugin is called {name!r}; {hint(short, [one.name for one in statuses])}")
    return matches


def _check(loaded: Plugins, status: PluginStatus) -> tuple[str, str]:
    """State and cause after a look at the plugin's class."""
    from dynaweb.errors import MissingError, PluginError

    if status.status != "ok" or not status.kind:
        return status.status, status.cause
    try:
        loaded.check_class(status.kind, status.name)
    except MissingError as error:
        return "missing", str(error)
    except PluginError as error:
        return "broken", str(error)
    return "ok", ""


def _described(loaded: Plugins, status: PluginStatus) -> dict[str, Any]:
    from dynaweb.cli.output import plain

    data: dict[str, Any] = plain(status)
    plugin = loaded.offers.get((status.kind, status.name)) if status.kind else None
    if plugin is None:
        return data
    spec = plugin.spec
    data |= {"target": spec.target, "extra": spec.extra, "capabilities": sorted(spec.capabilities)}
    data["settings"] = spec.config.model_json_schema().get("properties", {})
    return data


def _text(data: dict[str, Any]) -> str:
    lines = [f"{data['kind'] or 'plugin'}/{data['name']}  {data['summary']}"]
    lines.append(f"package       {data['package']} {data['version']}")
    lines.append(f"status        {data['status']}{': ' + data['cause'] if data['cause'] else ''}")
    for key in ("target", "extra"):
        if data.get(key):
            lines.append(f"{key.ljust(12)}  {data[key]}")
    if data.get("capabilities"):
        lines.append(f"capabilities  {', '.join(data['capabilities'])}")
    lines += _settings_text(data.get("settings", {}))
    return "\n".join(lines)


def _settings_text(settings: dict[str, Any]) -> list[str]:
    from dynaweb.cli.output import table

    if not settings:
        return []
    rows = [(name, json.dumps(about.get("default"), ensure_ascii=False)) for name, about in settings.items()]
    return ["", table(("setting", "default"), rows)]
