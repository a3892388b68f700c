"""Of which judges the judge of a recipe is made.

A judge made of others (capability `combines`) has a table `judges`. Whoever asks what a judge needs, a model, a server,
weights, asks it of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dynaweb.errors import ConfigError

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.plugin.registry import Plugins

TRAINABLE, COMBINES = "trainable", "combines"


def has_engine(recipe: Recipe, plugins: Plugins) -> bool:
    """Whether the recipe's judge, or one that it is made of, asks a model that is not the policy."""
    return any(
        TRAINABLE in plugins.find("reward", part).spec.capabilities or getattr(config, "model", None) == "base"
        for part, config in judges_in(recipe, plugins)
    )


def judges_in(recipe: Recipe, plugins: Plugins) -> Iterator[tuple[str, Any]]:
    """The recipe's judge and, where it is made of others, all of them, with their settings."""
    return parts(plugins, recipe.reward.name, recipe.reward.config)


def checked_config(plugins: Plugins, name: str, settings: Any) -> Any:
    """A judge's settings, validated."""
    from pydantic import BaseModel, ValidationError

    if isinstance(settings, BaseModel):
        return settings
    try:
        return plugins.find("reward", name).spec.config.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError(f"settings of judge {name!r}: {error}") from error


def parts(plugins: Plugins, name: str, config: Any) -> Iterator[tuple[str, Any]]:
    """The judge itself and, where it is made of others, all of them, with their settings."""
    yield name, config
    if COMBINES in plugins.find("reward", name).spec.capabilities:
        for part, spec in config.judges.items():
            yield from parts(plugins, part, checked_config(plugins, part, spec.settings))
