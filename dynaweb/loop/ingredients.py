"""What reinforcement learning starts from, and what its result depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dynaweb.judges.making import judge_key
from dynaweb.loop.beside import FIRST_PHASE, Phase
from dynaweb.loop.demos import pool_key
from dynaweb.loop.refresh import KEYS

if TYPE_CHECKING:
    from dynaweb.loop.workspace import Made, Workspace

Mode = Literal["policy", "filtered-bc"]


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What RL starts from: finished stages. `explored` and `world_model` are None when it happens on real pages."""

    sft: Made
    demos: Made
    experts: Made
    explored: Made | None = None
    world_model: Made | None = None
    judge: Made | None = None
    """The judge that was fitted for this run."""
    recorded: Made | None = None
    """Rollouts that are learned from offline."""
    drift: Made | None = None
    """What the world model's errors are by step of the dream. Nothing is learned from it."""
    phase: Phase = FIRST_PHASE

    def keys(self) -> dict[str, str]:
        """The cache keys of all ingredients."""
        parts = {"sft": self.sft, "demos": self.demos, "experts": self.experts}
        parts |= {"explored": self.explored} if self.explored else {}
        parts |= {"world_model": self.world_model} if self.world_model else {}
        parts |= {"recorded": self.recorded} if self.recorded else {}
        return {name: made.key for name, made in parts.items()} | self.phase.keys()


MATTERS = (
    *("updates", "tasks", "n", "sampling", "lr", "warmup", "max_grad_norm", "temperature", "epochs", "minibatches"),
    *("max_new_tokens", "expert_share", "bc_weight", "bc_batch", "expert_ratio", "lora_rank"),
)
"""Settings of the section `rl` that the policy depends on in every mode."""
AUDITED = ("every", "episodes", "confidence", "margin", "false_positive")
"""Settings of the section `audit` that a stage's metrics depend on: whether an alarm ends the run is not one."""


def rl_key(ws: Workspace, given: Ingredients, mode: Mode, *, done: int | None = None) -> str:
    """The cache key of the stage; `done` is the number of updates when the time budget ended it early."""
    recipe = ws.recipe
    parts = ["policy", "reward", "env", "dream", "data.max_best_steps", *(f"rl.{name}" for name in MATTERS)]
    parts += ["opt", "rl.negative_scale"] if mode == "policy" else []
    parts += ["replay"] if recipe.replay.capacity and mode == "policy" else []
    parts += [f"audit.{name}" for name in AUDITED] if recipe.audit.every else []
    parts += ["wm"] if ws.dreams else ["web.contexts"]
    parts += [*KEYS, "web.contexts"] if ws.dreams and recipe.wm_fit.refresh_every else []
    extra: dict[str, object] = {} if done is None else {"done": done}
    extra |= {"judge": judge_key(ws)} if judge_key(ws) else {}
    extra |= pool_key(ws)
    if recipe.rl.validate_every:
        parts += ["rl.validate_every", "eval.steps", "controls.sft_validation", "web.contexts"]
        extra["validation"] = ws.eval_key
    return ws.key(*parts, mode=mode, model=ws.trained_key, tasks=ws.task_key, **extra, **given.keys())
