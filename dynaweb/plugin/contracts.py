"""What plugins return, looked at where it comes in: one function for each answer of each kind.

Every function hands on what is right, and raises a `PluginError` for anything else that names the plugin, what came
back, and what is expected. They look at kinds and lengths alone, since they stand in the hot path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsFloat

from dynaweb.errors import PluginError
from dynaweb.protocols import AssignsCredit, Credit, CreditInput, LossOutput, PolicyOptimizer
from dynaweb.types import Action, Judgement, Node, Observation, Prediction, Prompt, StepFacts, StepResult, Task

if TYPE_CHECKING:
    from dynaweb.hookspecs import Kind
    from dynaweb.plugin.discovery import Plugin
    from dynaweb.protocols import WorldModel

Pair = tuple[Prompt, tuple[int, ...]]
"""Prompt and target ids."""


class Answering:
    """A world model whose predictions are looked at; for those that call it out of sight of the loop."""

    def __init__(self, world_model: WorldModel) -> None:
        self.world_model = world_model

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """The model's own prediction."""
        found = await self.world_model.predict(observation, action, seed=seed, history=history, goal=goal)
        return prediction(self.world_model, found)


def prediction(model: object, found: Any) -> Prediction:
    """What a world model predicts: a `Prediction` with a page, or without one."""
    if not isinstance(found, Prediction):
        raise _wrong("wm", model, "predict", found, "a dynaweb.types.Prediction")
    page = found.next_observation
    if page is not None and not _is_page(page):
        raise _wrong("wm", model, "predict", page, f"{_PAGE} or None in Prediction.next_observation")
    return found


def judgement(judge: object, found: Any) -> Judgement:
    """What a judge says. A score out of range is data all the same: see `dynaweb.judges.scores.checked`."""
    if not isinstance(found, Judgement):
        raise _wrong("reward", judge, "score", found, "a dynaweb.types.Judgement, with None for a score that it lacks")
    return found


def verdict(source: object, found: Any) -> Judgement:
    """What an environment says of an episode: a score in [0, 1], or None."""
    if not isinstance(found, Judgement):
        raise _wrong("env", source, "evaluate", found, "a dynaweb.types.Judgement")
    score = found.score
    if score is not None and not (isinstance(score, int | float) and 0.0 <= score <= 1.0):
        raise _wrong("env", source, "evaluate", score, "a number in [0, 1] or None in Judgement.score")
    return found


def first_page(environment: object, found: Any) -> Observation:
    """What an environment shows after `reset`."""
    if not _is_page(found):
        raise _wrong("env", environment, "reset", found, _PAGE)
    page: Observation = found
    return page


def step_result(environment: object, found: Any) -> StepResult:
    """What an environment answers to an action."""
    if not isinstance(found, StepResult):
        raise _wrong("env", environment, "step", found, "a dynaweb.types.StepResult")
    if not _is_page(found.observation):
        raise _wrong("env", environment, "step", found.observation, f"{_PAGE} in StepResult.observation")
    if not isinstance(found.info, Mapping):
        raise _wrong("env", environment, "step", found.info, "a mapping in StepResult.info")
    if not isinstance(found.facts, StepFacts):
        raise _wrong("env", environment, "step", found.facts, "a dynaweb.types.StepFacts in StepResult.facts")
    moved = _ONCE_FACTS & found.info.keys()
    if moved:
        # Version 0.1 read rewards from there: nobody should lose them without a word.
        what = "StepResult.facts for what decides rewards (a step's own reward is StepFacts.reward)"
        raise _wrong("env", environment, "step", {key: found.info[key] for key in sorted(moved)}, what)
    return found


def tasks(source: object, found: Any) -> list[Task]:
    """The tasks that an environment draws."""
    if not isinstance(found, list | tuple) or not all(isinstance(one, Task) for one in found):
        raise _wrong("env", source, "tasks", found, "a list of dynaweb.types.Task")
    return list(found)


def expert_action(expert: object, found: Any) -> Action:
    """What a scripted expert does next."""
    if not isinstance(found, Action):
        raise _wrong("env", expert, "act", found, "a dynaweb.types.Action")
    return found


def pairs(kind: Kind, owner: object, found: Any, *, count: int | None = None) -> list[Pair]:
    """Supervised pairs of a trainable world model or judge; with `count`, so many of them."""
    what = "a list of pairs (prompt, target ids), each prompt a dynaweb.types.Prompt"
    if not isinstance(found, list | tuple) or not all(isinstance(one, tuple | list) and len(one) == 2 for one in found):
        raise _wrong(kind, owner, "examples", found, what)
    odd = [one for one in found if not isinstance(one[0], Prompt)]
    if odd:
        raise _wrong(kind, owner, "examples", odd[0], what)
    if count is not None and len(found) != count:
        raise _wrong(kind, owner, "examples", f"{len(found)} pairs", f"one pair for each of {count} episodes")
    return list(found)


def advantages(optimizer: object, found: Any, count: int) -> list[float]:
    """Advantages of so many trajectories: finite numbers, one for each."""
    return _numbers(optimizer, "advantages", found, count, "trajectories")


def credit(optimizer: object, found: Any, batch: CreditInput) -> Credit:
    """The credit that an optimizer gives the trajectories and rows of an update."""
    if not isinstance(found, Credit):
        raise _wrong("opt", optimizer, "credit", found, "a dynaweb.protocols.Credit")
    count = len(batch.rewards)
    advantages = _numbers(optimizer, "credit", found.advantages, count, "trajectories, in Credit.advantages")
    rows = found.rows
    if rows is not None:
        rows = _numbers(optimizer, "credit", rows, len(batch.rows), "rows, in Credit.rows")
    for name in ("tokens", "kept", "targets"):
        given = getattr(found, name)
        if given is not None and _length(given) != len(batch.rows):
            what = f"one entry for each of {len(batch.rows)} rows, in Credit.{name}"
            raise _wrong("opt", optimizer, "credit", given, what)
    return replace(found, advantages=advantages, rows=rows)


def credit_of(optimizer: PolicyOptimizer, batch: CreditInput) -> Credit:
    """The optimizer's own credit, or its advantages as credit. Raises `PluginError` for what is neither."""
    if isinstance(optimizer, AssignsCredit):
        return credit(optimizer, optimizer.credit(batch), batch)
    given = optimizer.advantages(batch.graded, batch.groups)
    return Credit(advantages(optimizer, given, len(batch.rewards)))


def loss_output(optimizer: object, found: Any, call: str = "loss") -> LossOutput:
    """The loss of a micro-batch: one number with a gradient, and metrics that are numbers."""
    if not isinstance(found, LossOutput):
        raise _wrong("opt", optimizer, call, found, "a dynaweb.protocols.LossOutput")
    loss: Any = found.loss
    if not hasattr(loss, "requires_grad") or loss.numel() != 1:
        raise _wrong("opt", optimizer, call, loss, "one number, a tensor without dimensions, in LossOutput.loss")
    if not loss.requires_grad:
        what = "a loss that carries the gradient of what it was given; this one is detached, or made without it"
        raise _wrong("opt", optimizer, call, loss, what)
    metrics: Any = found.metrics
    if not isinstance(metrics, Mapping) or not all(isinstance(value, SupportsFloat) for value in metrics.values()):
        raise _wrong("opt", optimizer, call, metrics, "numbers by name in LossOutput.metrics")
    return found


_ONCE_FACTS = frozenset({"step_reward", "untrusted", "world_model_error"})
_PAGE = "a dynaweb.types.Observation with a tuple of nodes"


def _is_page(page: Any) -> bool:
    if not isinstance(page, Observation) or not isinstance(page.nodes, tuple) or not isinstance(page.url, str):
        return False
    return all(isinstance(node, Node) for node in page.nodes)


def _numbers(optimizer: object, call: str, found: Any, count: int, of_what: str) -> list[float]:
    what = f"one finite number for each of {count} {of_what}"
    if _length(found) != count:
        raise _wrong("opt", optimizer, call, found, what)
    odd = [value for value in found if not isinstance(value, SupportsFloat) or not math.isfinite(value)]
    if odd:
        raise _wrong("opt", optimizer, call, odd[0], what)
    return [float(value) for value in found]


def _length(found: Any) -> int:
    """-1 for what is no sequence."""
    if isinstance(found, str | bytes | Mapping):
        return -1
    try:
        return len(found)
    except TypeError:
        return -1


def _wrong(kind: Kind, owner: object, call: str, found: Any, expected: str) -> PluginError:
    return PluginError(f"{_name(kind, owner)}: {call}() returned {_shown(found)}; expected {expected}")


def _shown(found: Any) -> str:
    text = repr(found)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    length = f" of length {_length(found)}" if _length(found) >= 0 else ""
    return text if found is None else f"{text} ({type(found).__name__}{length})"


def _name(kind: Kind, owner: object) -> str:
    """The plugin whose class an object is of, or that its module, or its package, offers; else its class."""
    from dynaweb.plugin.registry import KIND_WORDS

    cls = type(owner)
    named = " or ".join(f"{KIND_WORDS[kind]} {one.name!r} ({one.origin})" for one in _plugins(kind, cls))
    return named or f"{KIND_WORDS[kind]} of class {cls.__module__}.{cls.__qualname__}"


def _plugins(kind: Kind, cls: type) -> Iterable[Plugin]:
    from dynaweb.plugin.registry import current

    offered = [plugin for plugin in current().offers.values() if plugin.kind == kind]
    package = cls.__module__.partition(".")[0]
    for known in (f"{cls.__module__}:{cls.__qualname__}", f"{cls.__module__}:", f"{package}.", f"{package}:"):
        found = [plugin for plugin in offered if plugin.spec.target.startswith(known)]
        if found:
            return found
    return ()


__all__ = [
    "Answering",
    "advantages",
    "credit",
    "credit_of",
    "expert_action",
    "first_page",
    "judgement",
    "loss_output",
    "pairs",
    "prediction",
    "step_result",
    "tasks",
    "verdict",
]
