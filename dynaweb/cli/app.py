"""The command tree. Only the part that was asked for is imported, so that every command answers at once."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from dynaweb import __version__
from dynaweb.cli import options
from dynaweb.cli.process import Group

COMMANDS = {
    "run": "run:run",
    "sft": "stages:sft",
    "collect": "stages:collect",
    "eval": "stages:evaluate",
    "compare": "compare:compare",
    "reproduce": "results:reproduce",
    "view": "view:view",
    "report": "view:report",
    "push": "push:push",
    "init": "plugins:init",
    "play": "play:play",
    "setup": "machine:setup",
    "doctor": "machine:doctor",
}
GROUPS = {
    "matrix": "matrix:matrix_app",
    "results": "results:results_app",
    "wm": "stages:wm_app",
    "orm": "stages:orm_app",
    "judge": "stages:judge_app",
    "data": "data:data_app",
    "plugins": "plugins:plugins_app",
    "new": "plugins:new_app",
    "config": "config:config_app",
    "tasks": "tasks:tasks_app",
    "env": "play:env_app",
    "web": "machine:web_app",
    "cache": "cache:cache_app",
}
"""Names of commands and groups, with the module below `dynaweb.cli` and the object that each stands for."""

# Plain help: rich costs a third of the start-up time, and pipes want text.
app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Train LLM web agents by reinforcement learning in the dreams of a learned web world model.",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"dynaweb {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)]


@app.callback()
def root(
    version: Version = False,
    debug: options.Debug = False,
) -> None:
    """Options of all commands."""


_loaded: set[str] = set()


def tree(word: str = "") -> typer.Typer:
    """The app with the command or group `word`, or with all of them when there is none of that name."""
    for name, target in {**COMMANDS, **GROUPS}.items():
        if name in _loaded or (word in {*COMMANDS, *GROUPS} and name != word):
            continue
        module, _, attribute = target.partition(":")
        part = getattr(import_module(f"dynaweb.cli.{module}"), attribute)
        if name in GROUPS:
            app.add_typer(part, name=name)
        else:
            app.command(name)(part)
        _loaded.add(name)
    return app
