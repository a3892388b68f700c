"""Whose code an unexpected error comes from, where that is a plugin of another package."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynaweb.discovery import Plugin


def plugin_fault(error: BaseException) -> str:
    """What failed in the code of another package's plugin: the calls from there on, and one sentence. '' for others."""
    frames = traceback.extract_tb(error.__traceback__)
    found = _innermost(frames)
    if found is None:
        return ""
    at, plugins = found
    frame = frames[at]
    calls = "".join(traceback.format_list(frames[at:]))
    where = f"{frame.name} ({Path(frame.filename).name}, line {frame.lineno})"
    return f"{calls}error: {_who(plugins)} failed in {where}: {type(error).__name__}: {error}"


def _who(plugins: list[Plugin]) -> str:
    """One plugin, or where a module holds several, all of them."""
    from dynaweb.plugins import KIND_WORDS

    names = " or ".join(f"{KIND_WORDS[plugin.kind]} {plugin.name!r}" for plugin in plugins)
    return f"{names} (package {plugins[0].origin.package} {plugins[0].origin.version})"


def _innermost(frames: traceback.StackSummary) -> tuple[int, list[Plugin]] | None:
    from dynaweb.config.code import OWN, places_of
    from dynaweb.plugins import current

    others = [(plugin, places_of(plugin)) for plugin in current().offers.values() if plugin.origin.package != OWN]
    for at in range(len(frames) - 1, -1, -1):
        file = Path(frames[at].filename)
        within = [plugin for plugin, places in others if any(one == file or one in file.parents for one in places)]
        if within:
            return at, [plugin for plugin in within if _is_target(plugin, file)] or within
    return None


def _is_target(plugin: Plugin, file: Path) -> bool:
    """Whether a file is the module of a plugin's class."""
    module = sys.modules.get(plugin.spec.target.partition(":")[0])
    return getattr(module, "__file__", None) == str(file)
