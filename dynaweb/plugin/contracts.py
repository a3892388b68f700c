"""Contracts: what plugins return is checked where it comes in, by one function for each answer of each kind.

Every function hands on an answer that is right, and raises a `PluginError` for any other, which names the plugin, what
came back, and what is expected. They check types and lengths alone, since they stand in the hot path. Nothing is
computed here: advantages, for one, are computed by `dynaweb.trainer.advantages.compute_advantages`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsFloat

from dynaweb.errors import PluginError
from dynaweb.plugin.interface import environment_problems
from dynaweb.protocols import Completion, Credit, CreditInput, DrawsPages, LossOutput, RemembersSites
from dynaweb.types import Action, Image, Judgement, Node, Observation, Prediction, Prompt, StepFacts, StepResult, Task

if TYPE_CHECKING:
    from dynaweb.hookspecs import Kind
    from dynaweb.plugin.discovery import Plugin
    from dynaweb.protocols import Environment, WorldModel

Pair = tuple[Prompt, tuple[int, ...]]
"""Prompt and target ids."""


class CheckedWorldModel:
    """A world model whose predictions are checked; for those that call it out of sight of the loop."""

    def __init__(self, world_model: WorldModel) -> None:
        self.world_model = world_model

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """The model's own prediction."""
        answer = await self.world_model.predict(observation, action, seed=seed, history=history, goal=goal)
        return prediction(self.world_model, answer)

    def on_site(self, site: str, *, without: str = "") -> CheckedWorldModel:
        """The same for one dream on a site, where the model remembers sites."""
        if not isinstance(self.world_model, RemembersSites):
            return self
        return CheckedWorldModel(self.world_model.on_site(site, without=without))


def prediction(model: object, answer: Any) -> Prediction:
    """What a world model predicts: a `Prediction` with a page, or without one."""
    if not isinstance(answer, Prediction):
        raise _wrong("wm", model, "predict", answer, "a dynaweb.types.Prediction")
    page = answer.next_observation
    if page is not None and not _is_page(page):
        raise _wrong("wm", model, "predict", page, f"{_PAGE} or None in Prediction.next_observation")
    if answer.image is not None and not isinstance(answer.image, Image):
        raise _wrong("wm", model, "predict", answer.image, f"{_IMAGE} in Prediction.image")
    return answer


def drawn(model: object, answer: Any) -> Image | None:
    """What a world model draws: an image, or None."""
    if answer is not None and not isinstance(answer, Image):
        raise _wrong("wm", model, "draw", answer, _IMAGE)
    return answer


def drawing(world_model: object) -> DrawsPages | None:
    """The world model that draws among those that a composed one is made of (`world_model`); None where none does."""
    while world_model is not None and not isinstance(world_model, DrawsPages):
        world_model = getattr(world_model, "world_model", None)
    return world_model


def judgement(judge: object, answer: Any) -> Judgement:
    """What a judge says. A score out of range is data all the same: see `dynaweb.judges.scores.checked`."""
    if not isinstance(answer, Judgement):
        raise _wrong("reward", judge, "score", answer, "a dynaweb.types.Judgement, with None for a score that it lacks")
    return answer


def verdict(source: object, answer: Any) -> Judgement:
    """What an environment says of an episode: a score in [0, 1], or None."""
    if not isinstance(answer, Judgement):
        raise _wrong("env", source, "evaluate", answer, "a dynaweb.types.Judgement")
    score = answer.score
    if score is not None and not (isinstance(score, int | float) and 0.0 <= score <= 1.0):
        raise _wrong("env", source, "evaluate", score, "a number in [0, 1] or None in Judgement.score")
    return answer


def first_page(environment: object, answer: Any) -> Observation:
    """What an environment shows after `reset`."""
    if not _is_page(answer):
        raise _wrong("env", environment, "reset", answer, _PAGE)
    page: Observation = answer
    return page


def environment(source: object, answer: Any) -> Environment:
    """What a task source makes for an episode: an object with the coroutines of `Environment`."""
    if wrong := environment_problems(type(answer)):
        raise _wrong("env", source, "environment", answer, f"an Environment: {'; '.join(wrong)}")
    new: Environment = answer
    return new


def step_result(environment: object, answer: Any) -> StepResult:
    """What an environment answers to an action."""
    if not isinstance(answer, StepResult):
        raise _wrong("env", environment, "step", answer, "a dynaweb.types.StepResult")
    if not _is_page(answer.observation):
        raise _wrong("env", environment, "step", answer.observation, f"{_PAGE} in StepResult.observation")
    if not isinstance(answer.info, Mapping):
        raise _wrong("env", environment, "step", answer.info, "a mapping in StepResult.info")
    if not isinstance(answer.facts, StepFacts):
        raise _wrong("env", environment, "step", answer.facts, "a dynaweb.types.StepFacts in StepResult.facts")
    moved = _FORMER_FACTS & answer.info.keys()
    if moved:
        # Version 0.1 read rewards from there: nobody should lose them without a word.
        what = "StepResult.facts for what decides rewards (a step's own reward is StepFacts.reward)"
        raise _wrong("env", environment, "step", {key: answer.info[key] for key in sorted(moved)}, what)
    return answer


def tasks(source: object, answer: Any) -> list[Task]:
    """The tasks that an environment draws."""
    if not isinstance(answer, list | tuple) or not all(isinstance(one, Task) for one in answer):
        raise _wrong("env", source, "tasks", answer, "a list of dynaweb.types.Task")
    return list(answer)


def expert_action(expert: object, answer: Any) -> Action:
    """What a scripted expert does next."""
    if not isinstance(answer, Action):
        raise _wrong("env", expert, "act", answer, "a dynaweb.types.Action")
    return answer


def completion(engine: object, answer: Any) -> Completion:
    """What an engine generates."""
    if not isinstance(answer, Completion):
        raise _wrong("engine", engine, "generate", answer, "a dynaweb.protocols.Completion")
    if _length(answer.token_ids) < 0 or _length(answer.logprobs) != _length(answer.token_ids):
        what = "as many numbers in Completion.logprobs as there are in Completion.token_ids"
        raise _wrong("engine", engine, "generate", answer, what)
    return answer


def choice_logprobs(engine: object, answer: Any, count: int) -> tuple[float, ...]:
    """What an engine says of so many choices."""
    what = f"one number for each of {count} choices"
    if _length(answer) != count or not all(isinstance(value, SupportsFloat) for value in answer):
        raise _wrong("engine", engine, "choice_logprobs", answer, what)
    return tuple(answer)


def pairs(kind: Kind, owner: object, answer: Any, *, count: int | None = None) -> list[Pair]:
    """Supervised pairs of a trainable world model or judge; with `count`, so many of them."""
    what = "a list of pairs (prompt, target ids), each prompt a dynaweb.types.Prompt"
    if not isinstance(answer, list | tuple) or not all(
        isinstance(one, tuple | list) and len(one) == 2 for one in answer
    ):
        raise _wrong(kind, owner, "examples", answer, what)
    odd = [one for one in answer if not isinstance(one[0], Prompt)]
    if odd:
        raise _wrong(kind, owner, "examples", odd[0], what)
    if count is not None and len(answer) != count:
        raise _wrong(kind, owner, "examples", f"{len(answer)} pairs", f"one pair for each of {count} episodes")
    return list(answer)


def advantages(optimizer: object, answer: Any, count: int) -> list[float]:
    """Advantages of so many trajectories: finite numbers, one for each."""
    return _numbers(optimizer, "advantages", answer, count, "trajectories")


def credit(optimizer: object, answer: Any, batch: CreditInput) -> Credit:
    """The credit that an optimizer gives the trajectories and rows of an update."""
    if not isinstance(answer, Credit):
        raise _wrong("opt", optimizer, "credit", answer, "a dynaweb.protocols.Credit")
    count = len(batch.rewards)
    per_trajectory = _numbers(optimizer, "credit", answer.advantages, count, "trajectories, in Credit.advantages")
    rows = answer.rows
    if rows is not None:
        rows = _numbers(optimizer, "credit", rows, len(batch.rows), "rows, in Credit.rows")
    for name in ("tokens", "row_mask", "targets"):
        entries = getattr(answer, name)
        if entries is not None and _length(entries) != len(batch.rows):
            what = f"one entry for each of {len(batch.rows)} rows, in Credit.{name}"
            raise _wrong("opt", optimizer, "credit", entries, what)
    return replace(answer, advantages=per_trajectory, rows=rows)


def loss_output(optimizer: object, answer: Any, call: str = "loss") -> LossOutput:
    """The loss of a micro-batch: one number with a gradient, and metrics that are numbers."""
    if not isinstance(answer, LossOutput):
        raise _wrong("opt", optimizer, call, answer, "a dynaweb.protocols.LossOutput")
    loss: Any = answer.loss
    if not hasattr(loss, "requires_grad") or loss.numel() != 1:
        raise _wrong("opt", optimizer, call, loss, "one number, a tensor without dimensions, in LossOutput.loss")
    if not loss.requires_grad:
        what = "a loss that carries the gradient of what it was given; this one is detached, or made without it"
        raise _wrong("opt", optimizer, call, loss, what)
    metrics: Any = answer.metrics
    if not isinstance(metrics, Mapping) or not all(isinstance(value, SupportsFloat) for value in metrics.values()):
        raise _wrong("opt", optimizer, call, metrics, "numbers by name in LossOutput.metrics")
    return answer


_FORMER_FACTS = frozenset({"step_reward", "untrusted", "world_model_error"})
_PAGE = "a dynaweb.types.Observation with a tuple of nodes"
_IMAGE = "a dynaweb.types.Image, as WorldModelContext.images.put gives one, or None"


def _is_page(page: Any) -> bool:
    if not isinstance(page, Observation) or not isinstance(page.nodes, tuple) or not isinstance(page.url, str):
        return False
    return all(isinstance(node, Node) for node in page.nodes)


def _numbers(optimizer: object, call: str, answer: Any, count: int, of_what: str) -> list[float]:
    what = f"one finite number for each of {count} {of_what}"
    if _length(answer) != count:
        raise _wrong("opt", optimizer, call, answer, what)
    odd = [value for value in answer if not isinstance(value, SupportsFloat) or not math.isfinite(value)]
    if odd:
        raise _wrong("opt", optimizer, call, odd[0], what)
    return [float(value) for value in answer]


def _length(answer: Any) -> int:
    """-1 for what is no sequence."""
    if isinstance(answer, str | bytes | Mapping):
        return -1
    try:
        return len(answer)
    except TypeError:
        return -1


def _wrong(kind: Kind, owner: object, call: str, answer: Any, expected: str) -> PluginError:
    return PluginError(f"{title(kind, owner)}: {call}() returned {_described(answer)}; expected {expected}")


def _described(answer: Any) -> str:
    text = repr(answer)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    length = f" of length {_length(answer)}" if _length(answer) >= 0 else ""
    return text if answer is None else f"{text} ({type(answer).__name__}{length})"


def title(kind: Kind, owner: object) -> str:
    """The plugin whose class an object is of, or that its module, or its package, offers; else its class."""
    from dynaweb.plugin.registry import KIND_WORDS

    cls = type(owner)
    named = " or ".join(f"{one.title} ({one.origin})" for one in _plugins(kind, cls))
    return named or f"{KIND_WORDS[kind]} of class {cls.__module__}.{cls.__qualname__}"


def _plugins(kind: Kind, cls: type) -> Iterable[Plugin]:
    from dynaweb.plugin.registry import current

    offered = [plugin for plugin in current().offers.values() if plugin.kind == kind]
    package = cls.__module__.partition(".")[0]
    for known in (f"{cls.__module__}:{cls.__qualname__}", f"{cls.__module__}:", f"{package}.", f"{package}:"):
        if matches := [plugin for plugin in offered if plugin.spec.target.startswith(known)]:
            return matches
    return ()


__all__ = [
    "CheckedWorldModel",
    "advantages",
    "choice_logprobs",
    "completion",
    "credit",
    "environment",
    "expert_action",
    "first_page",
    "judgement",
    "loss_output",
    "pairs",
    "prediction",
    "step_result",
    "tasks",
    "title",
    "verdict",
]
