"""`dynaweb plugins list`, `dynaweb config show|schema`: what there is, and what a recipe means."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dynaweb.cli import options as o

plugins_app = typer.Typer(no_args_is_help=True, help="Plugins that are installed.", rich_markup_mode=None)
config_app = typer.Typer(no_args_is_help=True, help="What a recipe means, and what it may hold.", rich_markup_mode=None)


@plugins_app.command("list")
def list_plugins(block: o.Block = None, as_json: o.Json = False, debug: o.Debug = False) -> None:
    """List every plugin: kind, name, summary, package and version, status."""
    from dynaweb.cli.output import plain, table

    statuses = o.load_plugins(block, warn=False).statuses()
    if as_json:
        typer.echo(json.dumps([plain(status) for status in statuses], indent=2, ensure_ascii=False))
        return
    rows = [
        (one.kind or "-", one.name, f"{one.package} {one.version}", one.status, one.cause or one.summary)
        for one in statuses
    ]
    typer.echo(table(("kind", "name", "package", "status", "summary"), rows))


@config_app.command("show")
def show(
    recipe: o.Recipe = "dynaweb",
    wm: o.Wm = None,
    opt: o.Opt = None,
    reward: o.Reward = None,
    env: o.Env = None,
    eval_env: o.EvalEnv = None,
    model: o.Model = None,
    agent: o.Agent = None,
    seed: o.Seed = None,
    thorough: o.Thorough = False,
    sets: o.Set = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Print a recipe with every value and where it comes from. The output is a recipe itself."""
    resolved = o.resolved(recipe, locals())
    if as_json:
        from dynaweb.runs.folder import saved

        typer.echo(json.dumps(saved(resolved), indent=2, ensure_ascii=False))
    else:
        typer.echo(resolved.to_toml(origins=True), nl=False)


@config_app.command("schema")
def show_schema(
    block: o.Block = None,
    indent: Annotated[int, typer.Option(help="Spaces of indentation.")] = 2,
    debug: o.Debug = False,
) -> None:
    """Print the JSON schema of recipe files, with the settings of every plugin."""
    from dynaweb.config import schema

    typer.echo(json.dumps(schema(o.load_plugins(block)), indent=indent, ensure_ascii=False))


@config_app.command("recipes")
def recipes(as_json: o.Json = False, debug: o.Debug = False) -> None:
    """List the recipes that come with the package."""
    from dynaweb.cli.output import table
    from dynaweb.config.layers import recipe_layers, shipped_recipes

    found = {name: recipe_layers(name)[1] for name in shipped_recipes()}
    typer.echo(json.dumps(found, indent=2) if as_json else table(("recipe", "description"), list(found.items())))
