"""What changed between two pages: `apply(before, diff(before, after)) == after`, up to ids, as values and as text.

    delta = diff(before, after)             # operations in the order of the new page
    script = to_text(delta)                 # what a world model learns to write
    delta = parse(script, before)           # lenient; strict=True takes only what to_text writes
    after = apply(before, delta)            # ids are numbered again
    describe(before, action, after)         # one sentence in words

`DeltaError` is the only error. Everything is pure and needs neither torch nor a browser.
"""

from __future__ import annotations

from dynaweb.types import Add, Change, Delta, Keep, Op
from dynaweb.web.delta.describe import describe
from dynaweb.web.delta.diff import DeltaError, apply, diff
from dynaweb.web.delta.text import parse, to_text

__all__ = [
    "Add",
    "Change",
    "Delta",
    "DeltaError",
    "Keep",
    "Op",
    "apply",
    "describe",
    "diff",
    "parse",
    "to_text",
]
