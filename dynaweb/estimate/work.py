"""Tokens and floating point operations of a recipe's model work, as upper bounds: every episode as long as it may be.

A forward pass of a token costs 2 operations a weight, forward and backward 6, computing activations again 2 more (as in
arXiv 2001.08361, section 2.1); attention over the context is left out, which is a few percent at these lengths.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dynaweb.estimate.shapes import Shape

if TYPE_CHECKING:
    from dynaweb.config import Recipe

COMPACT_PROMPT = 350
"""Tokens of a prompt of the tiny model: its shop and forum pages with the goal."""
WEB_PROMPT = 1500
"""Tokens of a prompt with a page of the web, as in `benchmarks/trainer.py`."""
SFT_REPLY = 64
"""Tokens of a demonstrated reply."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one stage: tokens read, written and trained on, and operations for each."""

    read: int = 0
    written: int = 0
    trained: int = 0
    operations: float = 0.0
    """Of reading and training, which keep a processor busy."""
    decoding: float = 0.0
    """Of writing token after token, which waits for memory most of the time."""


STAGES = {
    **{"demos": "", "experts": ""},
    **{"sft": "sft", "explore": "explore", "world_model": "world-model", "rl": "rl"},
}
"""What the stages of `dynaweb.train.STAGES` that are known here are called in an estimate; "": no model works there."""


def work_of(
    recipe: Recipe,
    shape: Shape,
    stages: Collection[str],
    *,
    arms: int,
    served_world_model: bool,
    image_tokens: int = 0,
) -> dict[str, Work]:
    """Work of models on this machine: of each known one of a run's `stages` that has any, and of evaluating `arms`.

    `image_tokens` come on top of a prompt of the policy on a real page.
    """
    longest = recipe.policy.max_prompt_tokens or recipe.model.max_prompt_tokens or WEB_PROMPT
    prompt = COMPACT_PROMPT if recipe.model.path == "tiny" else min(WEB_PROMPT, longest)
    again = 2 if recipe.model.checkpointing else 0
    count = _Counter(shape, prompt, 6 + again)
    seeing = replace(count, prompt=prompt + image_tokens)
    # A world model that does not draw dreams in text; its rows of real experts are few.
    acting = count if "world_model" in stages else seeing
    explored = recipe.explore.episodes * recipe.explore.steps if recipe.explore.player == "policy" else 0
    fitted, measured = 0, 0
    if not served_world_model:
        fitted = recipe.wm_fit.steps * recipe.wm_fit.batch
        measured = min(recipe.wm_fit.fidelity_steps, recipe.explore.episodes * recipe.explore.steps)
    possible = {
        "sft": seeing.training(recipe.sft.steps * recipe.sft.batch, SFT_REPLY),
        "explore": seeing.playing(explored, recipe.policy.max_new_tokens),
        "world_model": _sum([count.training(fitted, _reply(recipe)), count.playing(measured, _reply(recipe))]),
        "rl": _rl(recipe, acting, dreams_here="world_model" in stages and not served_world_model),
    }
    work = {STAGES[name]: one for name, one in possible.items() if name in stages}
    work["eval"] = seeing.playing(arms * recipe.eval.episodes * recipe.eval.steps, recipe.policy.max_new_tokens)
    return {name: one for name, one in work.items() if one.read or one.trained}


def _rl(recipe: Recipe, count: _Counter, *, dreams_here: bool) -> Work:
    """Rollouts, verdicts, and the updates on them."""
    rl = recipe.rl
    rollouts = rl.updates * rl.tasks * rl.n
    played = round(rollouts * (1 - rl.expert_share)) * recipe.dream.longest
    longest = recipe.policy.max_new_tokens
    parts = [count.playing(played, longest), count.training(rl.updates * _rows(recipe), longest)]
    if dreams_here:
        parts.append(count.playing(played, _reply(recipe)))
    if recipe.reward.name == "self-assess":
        parts.append(count.playing(rollouts, 0))
    return _sum(parts)


def _rows(recipe: Recipe) -> int:
    """Rows of one update, all passes together."""
    rl = recipe.rl
    return rl.epochs * rl.tasks * rl.n * recipe.dream.longest + (rl.bc_batch if rl.bc_weight else 0)


def _reply(recipe: Recipe) -> int:
    """Longest page change that the world model writes."""
    config: Any = recipe.wm.config
    return int(getattr(config, "max_new_tokens", 0))


def _sum(parts: list[Work]) -> Work:
    names = Work.__dataclass_fields__
    return Work(**{name: sum(getattr(part, name) for part in parts) for name in names})


@dataclass(frozen=True, slots=True)
class _Counter:
    shape: Shape
    prompt: int
    each: int

    def playing(self, calls: int, reply: int) -> Work:
        """So many prompts, each answered by at most so many tokens."""
        read, written = calls * self.prompt, calls * reply
        decoding = 2.0 * self.shape.parameters * written
        return Work(read=read, written=written, operations=2.0 * self.shape.body * read, decoding=decoding)

    def training(self, rows: int, reply: int) -> Work:
        """Forward and backward of so many rows."""
        tokens = rows * (self.prompt + reply)
        head = 6.0 * self.shape.vocabulary * self.shape.width * rows * reply
        return Work(trained=tokens, operations=self.each * self.shape.body * tokens + head)
