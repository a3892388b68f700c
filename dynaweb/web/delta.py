"""What changed between two pages: `apply(before, diff(before, after)) == after`, up to ids, as values and as text.

    delta = diff(before, after)             # operations in the order of the new page
    script = to_text(delta)                 # what a world model learns to write
    delta = parse(script, before)           # lenient; strict=True takes only what to_text writes
    after = apply(before, delta)            # ids are numbered again
    describe(before, action, after)         # one sentence in words

`DeltaError` is the only error. Everything is pure and needs neither torch nor a browser.
"""

from __future__ import annotations

from dynaweb.web.delta_diff import apply, diff
from dynaweb.web.delta_text import parse, to_text
from dynaweb.web.delta_types import Add, Change, Delta, DeltaError, Keep, Op
from dynaweb.web.delta_words import describe

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
