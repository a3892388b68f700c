"""Configuration: recipes in TOML, overrides, and the origin of every value.

    recipe = resolve("dynaweb", overrides={"rl.updates": 20}, seed=1)
    recipe.rl.updates, recipe.origins["rl.updates"], recipe.settings_for("sft")

Layers, from the bottom: the defaults in `sections` and in each plugin's config class; the recipe file and those that it
`extends`; `--thorough`; flags such as `--wm` and `--seed`; `--set`. All problems are told at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynaweb.config.recipe import Choice, Recipe
    from dynaweb.config.resolving import resolve, restore, schema
    from dynaweb.config.sections import Section

_HOMES = {
    "Choice": "dynaweb.config.recipe",
    "Recipe": "dynaweb.config.recipe",
    "Section": "dynaweb.config.sections",
    "resolve": "dynaweb.config.resolving",
    "restore": "dynaweb.config.resolving",
    "schema": "dynaweb.config.resolving",
}


def __getattr__(name: str) -> Any:
    # Plugins import `dynaweb.config.sections` alone; the rest is loaded when it is used.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


__all__ = ["Choice", "Recipe", "Section", "resolve", "restore", "schema"]
