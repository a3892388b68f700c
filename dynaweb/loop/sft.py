"""Supervised fine-tuning on the demonstrations, and its longer control on the same ones.

The control answers whether more of the same training would have done as well: a few step counts are tried, the best one
on validation sites in the real environment is the arm that the main result is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynaweb.loop.evaluate import evaluate_arm, successes
from dynaweb.loop.experts import by_task, rows_of
from dynaweb.loop.training import fit

if TYPE_CHECKING:
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.runs import Stage


@dataclass(frozen=True, slots=True)
class Control:
    """The chosen longer SFT: its number of updates, its weights, and the validation success of each candidate."""

    steps: int
    made: Made
    validation: dict[int, float]


async def sft(ws: Workspace, demos: Made, *, steps: int | None = None, keep_as: str = "sft") -> Made:
    """Stage `sft`: the base model trained on every step of the successful demonstrations."""
    settings = ws.recipe.sft
    count = settings.steps if steps is None else steps
    name = "sft" if steps is None else f"sft-{count}"

    async def body(stage: Stage) -> None:
        experts = [episode for found in by_task(demos.episodes()).values() for episode in found]
        rows = rows_of(experts, ws.format)
        model = ws.load()
        await fit(ws, stage, model, rows, name=name, steps=count, batch=settings.batch, lr=settings.lr)

    key = ws.key("model", "sft.batch", "sft.lr", steps=count, name=name, base=ws.base_key, demos=demos.key)
    made = await ws.stage("sft", key, body, settings=ws.recipe.settings("run.seed", "sft"), resumable=True)
    ws.keep(made, keep_as)
    return made


async def longer_sft(ws: Workspace, demos: Made) -> Control | None:
    """Train the candidates, evaluate each on validation sites, and take the best (the shorter of equals)."""
    candidates = sorted(set(ws.recipe.controls.sft_steps))
    if not candidates:
        return None
    found: dict[int, tuple[Made, float]] = {}
    for steps in candidates:
        made = await sft(ws, demos, steps=steps, keep_as=f"sft-{steps}")
        score = -1.0
        if len(candidates) > 1:
            score = await _validation(ws, f"sft-{steps}", made)
        found[steps] = (made, score)
    best = max(candidates, key=lambda steps: (found[steps][1], -steps))
    scores = {steps: score for steps, (_, score) in found.items() if score >= 0}
    return Control(best, found[best][0], scores)


async def _validation(ws: Workspace, arm: str, made: Made) -> float:
    evaluated = await evaluate_arm(
        ws, arm, made.model, made.key, split="validation", count=ws.recipe.controls.sft_validation
    )
    graded = [value for value in successes(evaluated.episodes()) if value is not None]
    return sum(graded) / len(graded) if graded else 0.0
