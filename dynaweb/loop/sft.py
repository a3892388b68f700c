"""Supervised fine-tuning on the demonstrations, and its longer control on the same ones.

The control answers whether more of the same training would have done as well: a few step counts are tried, the best one
on validation sites in the real environment is the arm that the main result is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynaweb.loop.adapters import with_adapters
from dynaweb.loop.evaluate import evaluate_arm, successes
from dynaweb.loop.experts import by_task, rows_of
from dynaweb.loop.training import fit
from dynaweb.report.data import sft_label
from dynaweb.report.stats import Estimate, proportion

if TYPE_CHECKING:
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.runs import Stage


@dataclass(frozen=True, slots=True)
class Control:
    """The chosen longer SFT: its updates, its weights, and the success of each candidate on validation sites."""

    steps: int
    made: Made
    validation: dict[int, Estimate]


async def sft(ws: Workspace, demos: Made, *, steps: int | None = None, keep_as: str = "sft") -> Made:
    """Stage `sft`: the base model trained on every step of the successful demonstrations; as it is for 0 steps."""
    settings = ws.recipe.sft
    count = settings.steps if steps is None else steps
    name = "sft" if steps is None else f"sft-{count}"

    async def body(stage: Stage) -> None:
        if count == 0:
            return ws.load().save(stage.folder)
        experts = [episode for found in by_task(demos.episodes()).values() for episode in found]
        model = ws.load()
        rows = rows_of(experts, model.format)
        model = with_adapters(model, settings.lora_rank, seed=ws.seed("lora", name))
        await fit(ws, stage, model, rows, name=name, steps=count, batch=settings.batch, lr=settings.lr)

    key = ws.key("sft.batch", "sft.lr", "sft.lora_rank", steps=count, name=name, model=ws.trained_key, demos=demos.key)
    made = await ws.stage("sft", key, body, settings=ws.recipe.settings("run.seed", "sft"), resumable=True)
    ws.keep(made, keep_as)
    return made


async def longer_sft(ws: Workspace, demos: Made) -> Control | None:
    """Train the candidates, evaluate each on validation sites, and take the best (the shorter of equals)."""
    candidates = sorted(set(ws.recipe.controls.sft_steps))
    if not candidates:
        return None
    found = {steps: await sft(ws, demos, steps=steps, keep_as=f"sft-{steps}") for steps in candidates}
    scores: dict[int, Estimate] = {}
    if len(candidates) > 1:
        scores = {steps: await _validation(ws, steps, made) for steps, made in found.items()}
    best = max(candidates, key=lambda steps: (scores[steps].value or 0.0, -steps) if scores else (0.0, -steps))
    return Control(best, found[best], scores)


async def _validation(ws: Workspace, steps: int, made: Made) -> Estimate:
    evaluated = await evaluate_arm(
        ws,
        f"sft-{steps}",
        made.model,
        made.key,
        split="validation",
        count=ws.recipe.controls.sft_validation,
        label=sft_label(steps),
    )
    return proportion(successes(evaluated.episodes()))
