"""The seams: four plugin protocols, and the engine and backend under them.

A plugin class is called as `Class(config, context)`: `config` is an instance of the pydantic model named in its
`PluginSpec`, `context` a `PluginContext`. All of it is duck-typed; nothing has to be subclassed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from dynaweb.policy.formats import PromptFormat
    from dynaweb.types import (
        Action,
        Judgement,
        Observation,
        Prediction,
        StepResult,
        Task,
        Trajectory,
        Transition,
    )


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt for an engine. Tokens in, tokens out.

    `temperature` 0 is greedy. Sampling depends on `seed` alone, never on which other requests share the batch.
    Generation ends after any of `stop_ids` (which is kept in the output), after the token that completes any of the
    texts in `stop` (kept too; for engines that know the tokenizer), or after `max_new_tokens`.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens with their natural-log probabilities under the distribution they were drawn from."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool


class Engine(Protocol):
    """Turns prompts into tokens. Calls of concurrent coroutines are gathered into one batch."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion."""
        ...

    async def choice_logprobs(self, prompt_ids: tuple[int, ...], choices: tuple[int, ...]) -> tuple[float, ...]:
        """Natural-log probability of each token of `choices` as the next token after the prompt."""
        ...


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What the framework hands to a plugin: engine, prompt format, seed, and where it may write."""

    engine: Engine | None = None
    format: PromptFormat | None = None
    seed: int = 0
    folder: Path | None = None
    services: Mapping[str, Any] = field(default_factory=dict)
    """Things that only some kinds need, such as `world_model` for the dream environment."""


@runtime_checkable
class WorldModel(Protocol):
    """Predicts the next page from a page and an action, and may look at the goal and the actions before."""

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """Dream one step. Never raises for malformed model output: that is `Prediction.error`.

        `history` are the actions before, oldest first; `goal` is the task in words, '' where there is none.
        """
        ...


@runtime_checkable
class TrainableWorldModel(WorldModel, Protocol):
    """A world model that can be fitted on real transitions."""

    def examples(self, transitions: Sequence[Transition]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Supervised pairs (prompt ids, target ids), one per transition that needs a prediction."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A place to act in: a real browser, or a dream.

    An environment whose goals are only known once a task is open may have an attribute `task`: the task as it is after
    `reset`, with the goal filled in.
    """

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the task from a clean state."""
        ...

    async def step(self, action: Action) -> StepResult:
        """Act. A refused action is an error text in the result, not an exception."""
        ...

    async def close(self) -> None:
        """Free everything; calling it twice is allowed."""
        ...


@runtime_checkable
class TaskSource(Protocol):
    """Environments that bring tasks: the plugin object behind `env` offers this besides making environments."""

    def tasks(self, split: str, *, count: int, seed: int) -> list[Task]:
        """`count` tasks of a split, the same for the same seed, templates in rotation."""
        ...

    def environment(self) -> Environment:
        """A new environment; `evaluate` works for episodes played in it."""
        ...

    async def evaluate(self, environment: Environment, trajectory: Trajectory) -> Judgement:
        """The environment's own verdict on an episode that has just ended in `environment`."""
        ...

    def expert(self, task: Task) -> ExpertPolicy:
        """The scripted expert of a task. Raises `MissingError` when there is none."""
        ...


@runtime_checkable
class Catalogue(Protocol):
    """Task sources with a finite list of tasks offer this besides `tasks`."""

    def catalogue(self, split: str) -> list[Task]:
        """Every task of a split that can be played, in a fixed order."""
        ...

    def skipped(self, split: str) -> Mapping[str, int]:
        """How many tasks of the split cannot be played here, by reason; they are never scored."""
        ...


@runtime_checkable
class TaskFinder(Protocol):
    """Task sources that know a task by its id alone, whatever draw it came from, offer this besides `tasks`."""

    def task(self, task_id: str) -> Task | None:
        """The task of an id that `tasks` has given at any time; None for any other text."""
        ...


@runtime_checkable
class MakesVariants(Protocol):
    """Task sources that can make further checked tasks like a given one offer this besides `tasks`."""

    def variants(self, task: Task, *, count: int, seed: int) -> list[Task]:
        """At most `count` other tasks of the same kind and split, with their own checks; the same for the same seed."""
        ...


class ExpertPolicy(Protocol):
    """Plays one task; keeps its place in the plan."""

    def act(self, observation: Observation) -> Action:
        """The next action on this page."""
        ...


@runtime_checkable
class Judge(Protocol):
    """Scores a trajectory in [0, 1], or says that it could not."""

    async def score(self, trajectory: Trajectory) -> Judgement:
        """Grade a finished trajectory."""
        ...


@runtime_checkable
class TrainableJudge(Judge, Protocol):
    """A judge that can be fitted on graded episodes; its plugin has the capability `trainable`."""

    async def log_odds(self, trajectory: Trajectory) -> float:
        """Natural-log odds of success before calibration; nan when the model gives no number."""
        ...

    def examples(
        self, trajectories: Sequence[Trajectory], labels: Sequence[bool]
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Supervised pairs (prompt ids, target ids), one per episode and label."""
        ...


@dataclass(frozen=True, slots=True)
class LossInput:
    """What a policy loss sees of one micro-batch; every tensor is float32 or float64, flat over rows.

    Shapes: R rows padded to width T, N trajectories of the WHOLE batch.
    `logp_RT` carries the gradient; `mask_RT` is True on agent tokens, and whatever stands elsewhere is ignored.
    `trajectory_R` maps a row to 0..N-1. `advantage_N` is per trajectory; `advantage_RT`, when given, per token.
    `tokens_N` counts agent tokens of each trajectory over all its rows, in all micro-batches and ranks.
    `log_ratio_sum_N`, when given, is the no-gradient sum of (logp - old_logp) over ALL agent tokens of each
    trajectory; an optimizer whose ratio needs the whole trajectory must get it when a trajectory is split.
    Where the optimizer gave credit to rows, `advantage_S` and `tokens_S` hold the advantage and the number of agent
    tokens of each row of the WHOLE batch, S of them, and `row_R` says which of them the rows of this micro-batch are.
    """

    logp_RT: torch.Tensor
    old_logp_RT: torch.Tensor
    mask_RT: torch.Tensor
    trajectory_R: torch.Tensor
    advantage_N: torch.Tensor
    tokens_N: torch.Tensor
    log_ratio_sum_N: torch.Tensor | None = None
    advantage_RT: torch.Tensor | None = None
    ref_logp_RT: torch.Tensor | None = None
    row_R: torch.Tensor | None = None
    advantage_S: torch.Tensor | None = None
    tokens_S: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The micro-batch's share of the batch loss (to be minimised; shares add up) and detached metrics.

    Every metric is a share of a figure of the whole batch, as the loss is: the trainer adds them up over micro-batches
    and reports them without an ending `_sum`.
    """

    loss: torch.Tensor
    metrics: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class PolicyOptimizer(Protocol):
    """Group baseline and loss of one algorithm. What it may have besides is in `dynaweb.credit`."""

    needs_trajectory_ratio: bool
    """True when the loss needs `log_ratio_sum_N` for trajectories that lie in several micro-batches."""

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """One advantage per trajectory; None rewards leave the baseline and get 0."""
        ...

    def loss(self, batch: LossInput) -> LossOutput:
        """The loss of one micro-batch; its docstring names the equation and the sign."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One training row: a prompt that is masked, a response that is trained on.

    `trajectory` is the index of its trajectory in the batch; `weight` scales a supervised row.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    trajectory: int = 0
    weight: float = 1.0


__all__ = [
    "Catalogue",
    "Completion",
    "Engine",
    "Environment",
    "ExpertPolicy",
    "GenerateRequest",
    "Judge",
    "LossInput",
    "LossOutput",
    "MakesVariants",
    "PluginContext",
    "PolicyOptimizer",
    "TaskSource",
    "TokenRow",
    "TrainableJudge",
    "TrainableWorldModel",
    "WorldModel",
]
