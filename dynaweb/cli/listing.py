"""`dynaweb plugins list`, `dynaweb config show|schema`: what there is, and what a recipe means."""

from __future__ import annotations

from typing import Annotated

import typer

from dynaweb.cli import options as o

plugins_app = typer.Typer(no_args_is_help=True, help="Plugins that are installed.", rich_markup_mode=None)
config_app = typer.Typer(no_args_is_help=True, help="What a recipe means, and what it may hold.", rich_markup_mode=None)


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
        from dynaweb.cli.output import print_json
        from dynaweb.runs.folder import saved

        print_json(saved(resolved))
    else:
        typer.echo(resolved.to_toml(origins=True), nl=False)


@config_app.command("schema")
def show_schema(
    block: o.Block = None,
    indent: Annotated[int, typer.Option(help="Spaces of indentation.")] = 2,
    debug: o.Debug = False,
) -> None:
    """Print the JSON schema of recipe files, with the settings of every plugin."""
    from dynaweb.cli.output import print_json
    from dynaweb.config import schema

    print_json(schema(o.load_plugins(block)), indent=indent)


@config_app.command("recipes")
def recipes(as_json: o.Json = False, debug: o.Debug = False) -> None:
    """List the recipes that come with the package."""
    from dynaweb.cli.output import emit, table
    from dynaweb.config.layers import recipe_layers, shipped_recipes

    found = {name: recipe_layers(name)[1] for name in shipped_recipes()}
    emit(found, table(("recipe", "description"), list(found.items())), as_json=as_json)
