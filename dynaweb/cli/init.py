"""`dynaweb init`: the folder of a project."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from dynaweb.cli import options as o

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the project; default: this one.")]
Base = Annotated[str, typer.Option("--recipe", metavar="NAME", help="The shipped recipe to begin with.")]


def init(folder: Folder = Path("."), base: Base = "dynaweb", as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Begin a project: a recipe of its own, an ablation, a notebook, and a .gitignore."""
    from dynaweb import api
    from dynaweb.cli.output import emit

    files = api.new_project(folder, base=base)
    emit({"folder": folder, "files": files}, "\n".join(map(str, files)), as_json=as_json)
    if not as_json:
        there = "" if folder.resolve() == Path.cwd() else f"cd {quote(str(folder))} && "
        typer.echo(f"\nnext: {there}dynaweb run {files[0].name} --dry-run, then without it", err=True)
