"""How many stages a run goes through, as far as its recipe tells: all but those that nobody can foresee."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynaweb.judges.making import to_fit
from dynaweb.loop.agents import looks_ahead
from dynaweb.loop.evaluate import audits

if TYPE_CHECKING:
    from dynaweb.loop.workspace import Workspace


def planned(ws: Workspace) -> int:
    """The stages of `dynaweb.loop.stages.whole_run`, those from the cache included."""
    played = 2 if audits(ws) else 1
    return _ingredients(ws) + _learned(ws) + played * _arms(ws)


def learns(ws: Workspace) -> bool:
    """Whether anything of the run learns from demonstrations; else the model is used as it is."""
    recipe = ws.recipe
    return bool(recipe.sft.steps or recipe.rl.updates or any(recipe.controls.sft_steps))


def has_filtered(ws: Workspace) -> bool:
    """Whether filtered behaviour cloning is one of the controls."""
    rl = ws.recipe.rl
    return ws.recipe.controls.filtered_bc and rl.mode != "filtered-bc" and rl.updates > 0


def _ingredients(ws: Workspace) -> int:
    """Demonstrations, SFT, a judge to fit, and what practice is made of."""
    recipe = ws.recipe
    count = 2 + (learns(ws) and recipe.data.experts == "all") + 2 * (to_fit(ws) is not None)
    if not ws.dreams:
        return count + bool(recipe.offline.episodes)
    return count + 2 + bool(recipe.wm_fit.open_loop)


def _learned(ws: Workspace) -> int:
    """Reinforcement learning with a curriculum between two phases, and the controls."""
    recipe, candidates = ws.recipe, len(set(ws.recipe.controls.sft_steps))
    main = 2 * recipe.phases.count - 1 if recipe.rl.updates else 0
    # One candidate needs no choice, and so no look at validation sites.
    return main + candidates + (candidates if candidates > 1 else 0) + has_filtered(ws)


def _arms(ws: Workspace) -> int:
    main = ws.recipe.rl.updates > 0 or (looks_ahead(ws) and ws.dreams)
    return 1 + bool(ws.recipe.controls.sft_steps) + has_filtered(ws) + main
