"""The command tree."""

from __future__ import annotations

from typing import Annotated

import typer

from dynaweb import __version__
from dynaweb.cli import data, judges, listing, machine, matrix, options, places, stages, tasks, worlds
from dynaweb.cli.compare import compare
from dynaweb.cli.plugins import new_app
from dynaweb.cli.process import Group
from dynaweb.cli.run import run
from dynaweb.cli.view import report, view

# Plain help: rich costs a third of the start-up time, and pipes want text.
app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
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


app.command("run")(run)
app.command("sft")(stages.sft)
app.command("collect")(worlds.collect)
app.command("eval")(stages.evaluate)
app.command("compare")(compare)
app.command("view")(view)
app.command("report")(report)
app.command("play")(places.play)
app.command("setup")(machine.setup)
app.command("doctor")(machine.doctor)
app.add_typer(matrix.matrix_app, name="matrix")
app.add_typer(worlds.wm_app, name="wm")
app.add_typer(judges.orm_app, name="orm")
app.add_typer(judges.judge_app, name="judge")
app.add_typer(data.data_app, name="data")
app.add_typer(listing.plugins_app, name="plugins")
app.add_typer(new_app, name="new")
app.add_typer(listing.config_app, name="config")
app.add_typer(tasks.tasks_app, name="tasks")
app.add_typer(places.env_app, name="env")
