"""Where an element is in the window."""

from __future__ import annotations

from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle in CSS pixels of the main viewport: its top left corner may lie outside of it."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, width: float, height: float) -> bool:
        """Whether any part of it shows in a viewport of that size."""
        inside = self.x < width and self.y < height and self.x + self.width > 0 and self.y + self.height > 0
        return inside and self.width > 0 and self.height > 0

    def offset(self, width: float, height: float) -> float:
        """CSS pixels between it and a window of that size: negative above or left of it, 0 where they meet."""
        across = _beyond(self.x, self.x + self.width, width)
        down = _beyond(self.y, self.y + self.height, height)
        return down if abs(down) >= abs(across) else across


def _beyond(start: float, end: float, size: float) -> float:
    return min(end, 0.0) if start < size else start - size
