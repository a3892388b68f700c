"""`dynaweb config show|schema|recipes`: what a recipe means, and what it may hold."""

from __future__ import annotations

from typing import Annotated

import typer

from dynaweb.cli import options as o

config_app = o.group("What a recipe means, and what it may hold.")


@config_app.command("show")
@o.expanded
def show(options: o.WholeOptions) -> None:
    """Print a recipe with every value and where it comes from. The output is a recipe itself."""
    recipe = options.resolved()
    if options.as_json:
        from dynaweb.cli.output import print_json
        from dynaweb.runs.folder import saved

        print_json(saved(recipe))
    else:
        typer.echo(recipe.to_toml(origins=True), nl=False)


@config_app.command("schema")
def show_schema(
    block: o.Block = None,
    indent: Annotated[int, typer.Option(help="Spaces of indentation.")] = 2,
    debug: o.Debug = False,
) -> None:
    """Print the JSON schema of recipe files, with the settings of every plugin."""
    from dynaweb import api
    from dynaweb.cli.output import print_json

    o.load_plugins(block)
    print_json(api.recipe_schema(), indent=indent)


@config_app.command("recipes")
def recipes(as_json: o.Json = False, debug: o.Debug = False) -> None:
    """List the recipes that come with the package."""
    from dynaweb import api
    from dynaweb.cli.output import emit, table

    descriptions = api.list_recipes()
    emit(descriptions, table(("recipe", "description"), list(descriptions.items())), as_json=as_json)
