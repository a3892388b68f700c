"""The observers that a recipe names, for the time of one run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.protocols import PluginContext

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.plugin.registry import Plugins


@contextmanager
def chosen_observers(recipe: Recipe, plugins: Plugins, folder: Path) -> Iterator[None]:
    """Build the observers of `run.observers`, tell them of everything inside the block, and close them after it.

    `context.folder` of an observer is the run folder. One that has a method `close` is closed whatever happens.
    """
    settings = recipe.run.observer_settings
    context = PluginContext(seed=recipe.run.seed, folder=folder)
    observers = [plugins.create("observer", name, settings.get(name, {}), context) for name in recipe.run.observers]
    try:
        with plugins.observing(*observers):
            yield
    finally:
        for observer in observers:
            close = getattr(observer, "close", None)
            if close is not None:
                close()
