"""Whose code an unexpected error comes from, where that is a plugin of another package."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynaweb.discovery import Plugin


def plugin_fault(error: BaseException) -> str:
    """What failed in the code of another package's plugin: the calls from there on, and one sentence. '' for others."""
    from dynaweb.plugins import KIND_WORDS

    frames = traceback.extract_tb(error.__traceback__)
    found = _innermost(frames)
    if found is None:
        return ""
    at, plugin = found
    frame = frames[at]
    calls = "".join(traceback.format_list(frames[at:]))
    who = f"{KIND_WORDS[plugin.kind]} {plugin.name!r} (package {plugin.origin.package} {plugin.origin.version})"
    where = f"{frame.name} ({Path(frame.filename).name}, line {frame.lineno})"
    return f"{calls}error: {who} failed in {where}: {type(error).__name__}: {error}"


def _innermost(frames: traceback.StackSummary) -> tuple[int, Plugin] | None:
    from dynaweb.config.code import OWN, places_of
    from dynaweb.plugins import current

    others = [(plugin, places_of(plugin)) for plugin in current().offers.values() if plugin.origin.package != OWN]
    for at in range(len(frames) - 1, -1, -1):
        file = Path(frames[at].filename)
        for plugin, places in others:
            if any(place == file or place in file.parents for place in places):
                return at, plugin
    return None
