"""The world model `delta` with pictures: what it predicts is a tree as before, and the tree is drawn.

The weights learn nothing of pixels, so everything that a picture shows is in the tree too. What it is good for: a
policy that sees can practise in dreams. How far its pictures are from those of a browser: `benchmarks/drawing.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynaweb.types import Action, Image, Observation, Prediction
from dynaweb_wm_delta.model import DeltaWorldModel
from dynaweb_wm_drawing.drawing import draw_page

if TYPE_CHECKING:
    from dynaweb.protocols import WorldModelContext
    from dynaweb_wm_drawing import DrawingConfig


class DrawingWorldModel(DeltaWorldModel):
    """Draws in the window, at the scale and with the marks of `context.observation`."""

    def __init__(self, config: DrawingConfig, context: WorldModelContext) -> None:
        super().__init__(config, context)
        self._look, self._images = context.observation, context.images

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """The prediction of `delta`, with its picture where there is a page."""
        prediction = await super().predict(observation, action, seed=seed, history=history, goal=goal)
        page = prediction.next_observation
        return prediction if page is None else replace(prediction, image=await self.draw(page))

    async def draw(self, page: Observation) -> Image | None:
        """A picture of a page; None where nobody asks for pictures. Raises `ImageError` where it cannot be kept."""
        look, images = self._look, self._images
        if look is None or images is None or not look.pictures:
            return None
        window = (look.width, look.height)
        # Beside the event loop, in which other episodes go on.
        png = await asyncio.to_thread(draw_page, page, window, scale=look.picture_scale, marks=look.marks)
        return images.put(png)
