"""World model `drawing`: predicts the change of a page as `delta` does, and draws the page that follows."""

from __future__ import annotations

from dynaweb.hookspecs import PluginSpec, hookimpl
from dynaweb_wm_delta import DeltaConfig


class DrawingConfig(DeltaConfig):
    """Settings of `drawing`: those of `delta`. The window and the marks are those of the recipe's `observation`."""


@hookimpl
def dynaweb_world_models() -> list[PluginSpec]:
    """Offer `--wm drawing`."""
    return [
        PluginSpec(
            name="drawing",
            target="dynaweb_wm_drawing.model:DrawingWorldModel",
            config=DrawingConfig,
            summary="delta, with a picture of every page that it predicts",
            extra="",
            capabilities=frozenset({"trainable", "draws"}),
        )
    ]
