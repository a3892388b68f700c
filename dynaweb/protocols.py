"""The seams, one after the other: the protocol of each kind of plugin, and what plugins are given and return.

world models       `WorldModel`, `TrainableWorldModel`
environments       `Environment`, `TaskSource` and what it may offer besides, `ExpertPolicy`
judges             `Judge`, `TrainableJudge`
policy optimizers  `PolicyOptimizer`; credit (`CreditInput` -> `Credit`), then the loss (`LossInput` -> `LossOutput`)
engines            `Engine`
prompts            `PromptFormat`

A plugin class is called as `Class(config, context)`: `config` is an instance of the pydantic model named in its
`PluginSpec`, `context` what its kind is given: `WorldModelContext`, `EnvironmentContext`, `DreamContext`,
`JudgeContext`, `EngineContext`, or the plain `PluginContext`. All of it is duck-typed; nothing has to be subclassed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from dynaweb.errors import EngineError

if TYPE_CHECKING:
    import torch

    from dynaweb.types import (
        Action,
        Image,
        Judgement,
        Observation,
        Prediction,
        Prompt,
        StepResult,
        Task,
        Trajectory,
        Transition,
    )


# --- What a plugin of any kind is given, and where it reports the tokens that it spends.


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """What a plugin of any kind is given. Optimizers and observers get nothing else."""

    seed: int = 0
    """Where its own randomness starts. An observer gets the seed of the run."""
    folder: Path | None = None
    """Where it may write: the run folder. None: nowhere."""


class TokenCount(Protocol):
    """A count of generated tokens."""

    @property
    def new_tokens(self) -> int:
        """Tokens generated so far."""
        ...


class Counted(Protocol):
    """An engine or a client of a model server, as far as costs go."""

    @property
    def stats(self) -> TokenCount:
        """What it has done."""
        ...


def uncounted(engine: Counted) -> None:
    """Where nobody counts the tokens of engines."""


# --- World models.


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
class RemembersSites(Protocol):
    """A world model with a memory of sites offers this besides `predict`; a dream asks for it when it begins."""

    def on_site(self, site: str, *, without: str = "") -> WorldModel:
        """The world model of one dream on a site (`dynaweb.worldmodels.memory.site_of_task`).

        What the episode `without` has seen is not remembered, so that it can be asked about that episode.
        """
        ...


@runtime_checkable
class DrawsPages(Protocol):
    """A world model that draws (capability `draws`) offers this besides `predict`.

    `Prediction.image` is the picture of a page that it predicts. A dream shows other pages too: the one that it begins
    on, where no picture of it was taken, and those that code makes of dreamed ones, such as with a value typed into a
    field. It asks for their pictures here.
    """

    async def draw(self, page: Observation) -> Image | None:
        """A picture of a page, in the window and with the marks that `WorldModelContext.observation` asks for, kept in
        `WorldModelContext.images`; None where nobody asks for pictures. The same page gives the same picture."""
        ...


@runtime_checkable
class TrainableWorldModel(WorldModel, Protocol):
    """A world model that can be fitted on real transitions."""

    def examples(self, transitions: Sequence[Transition]) -> list[tuple[Prompt, tuple[int, ...]]]:
        """Supervised pairs (prompt, target ids), one per transition that needs a prediction."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldModelContext(PluginContext):
    """What a world model is given."""

    engine: Engine | None = None
    """Generates with the world model's weights. None: it is only asked for examples to be trained on."""
    format: PromptFormat | None = None
    """The prompt layer of these weights. None outside a run."""
    weights: Weights | None = None
    """The weights themselves, for what an engine cannot do. None outside a run."""
    temperature: float = 0.7
    """Sampling temperature of dreams; 0 is greedy."""
    transitions: Callable[[], Sequence[Transition]] = tuple
    """Real transitions to show as examples, read when it is called. None of them is of a site in `held_out`."""
    held_out: Set[str] = frozenset()
    """Sites that the model is measured on: no transition of theirs may be shown, wherever it comes from."""
    count: Callable[[Counted], None] = uncounted
    """To be told of every engine that the plugin makes itself, so that its tokens count in the costs of the run."""
    observation: PictureSettings | None = None
    """Whether and how the policy is shown pictures, for a world model that draws. None: it is shown none."""
    images: Images | None = None
    """Where a world model that draws keeps its pictures. None: nowhere, so that it draws none."""


# --- Environments: a place to act in, the tasks that come with it, and experts that solve them.


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


class BrowserSettings(Protocol):
    """The browser: the recipe's section `web` (`dynaweb.config.sections.Web`)."""

    @property
    def browser(self) -> str:
        """Path of a Chromium; empty = look for one."""
        ...

    @property
    def endpoint(self) -> tuple[str, ...]:
        """Addresses of browsers that run elsewhere; empty = one of this machine."""
        ...

    @property
    def proxy_port(self) -> int:
        """Port of the filter of hosts for browsers that run elsewhere; 0 = any."""
        ...

    @property
    def contexts(self) -> int:
        """Episodes that are open at once."""
        ...

    @property
    def workers(self) -> int:
        """Browser operations that run at once; 0 = number of cores."""
        ...

    @property
    def action_timeout(self) -> float:
        """Seconds that one browser operation may take."""
        ...

    @property
    def settle(self) -> float:
        """Seconds after which a page that keeps changing, or still waits for something, is read as it is."""
        ...


class Images(Protocol):
    """Where the bytes of pictures lie, by their content (`dynaweb.data.images.ImageStore`)."""

    def put(self, data: bytes) -> Image:
        """Keep the bytes of a PNG file. Raises `ImageError` for anything else, and for one that is too large."""
        ...

    def get(self, image: Image) -> bytes:
        """The bytes of a picture. Raises `ImageError` when they are missing or damaged."""
        ...


class PictureSettings(Protocol):
    """Pictures of pages: the recipe's section `observation` (`dynaweb.config.sections.ObservationSettings`)."""

    @property
    def modality(self) -> str:
        """What the policy is given of a page: `text`, `screenshot` or `both`."""
        ...

    @property
    def pictures(self) -> bool:
        """Whether pictures of pages are taken: any other modality than `text`."""
        ...

    @property
    def marks(self) -> bool:
        """Whether elements are framed and numbered in pictures."""
        ...

    @property
    def width(self) -> int:
        """Width of the window in CSS pixels."""
        ...

    @property
    def height(self) -> int:
        """Height of the window in CSS pixels."""
        ...

    @property
    def picture_scale(self) -> float:
        """Pixels of a picture for one CSS pixel."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentContext(PluginContext):
    """What a task source is given."""

    web: BrowserSettings | None = None
    """Settings of the browser. None: the defaults of the recipe's section `web`."""
    observation: PictureSettings | None = None
    """Whether and how pictures of pages are taken. None: none are."""
    images: Images | None = None
    """Where pictures are kept. None: nowhere, so that none can be taken."""
    max_best_steps: int | None = None
    """Tasks with a longer shortest solution (closing `stop` included) are not used by the run. None: all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamContext(EnvironmentContext):
    """What a task source of dreams (capability `dreams`) is given besides."""

    world_model: WorldModel
    """Predicts the pages of dreams."""
    start_page: Callable[[Task], Observation | None]
    """The recorded real start page of a task, or None."""
    tasks: TaskSource
    """The environment that is dreamed of: it brings tasks and experts."""
    fidelity_floor: float = 0.0
    """Expected fidelity, in [0, 1], below which a dream ends; 0 = never."""
    in_page: Callable[[Observation, Action], Observation | None] | None = None
    """The page after an action that code decides, None where the world model is asked (`dynaweb.worldmodels.dynamics`);
    not given: by all rules."""


# --- Judges.


@runtime_checkable
class Judge(Protocol):
    """Scores a trajectory in [0, 1], or says that it could not."""

    async def score(self, trajectory: Trajectory) -> Judgement:
        """Grade a finished trajectory."""
        ...


class Calibration(Protocol):
    """Turns a judge's log-odds into probabilities that mean what they say (`dynaweb.judges.calibration.Platt`)."""

    @property
    def slope(self) -> float:
        """0 where the judge orders episodes no better than chance."""
        ...

    def probability(self, log_odds: float) -> float:
        """P(success)."""
        ...

    def evidence(self, log_odds: float) -> float:
        """P(success) if successes and failures were equally frequent."""
        ...


@runtime_checkable
class TrainableJudge(Judge, Protocol):
    """A judge that can be fitted on graded episodes; its plugin has the capability `trainable`."""

    async def log_odds(self, trajectory: Trajectory) -> float:
        """Natural-log odds of success before calibration; nan when the model gives no number."""
        ...

    def examples(
        self, trajectories: Sequence[Trajectory], labels: Sequence[bool]
    ) -> list[tuple[Prompt, tuple[int, ...]]]:
        """Supervised pairs (prompt, target ids), one per episode and label."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeContext(PluginContext):
    """What a reward judge is given."""

    engine: Engine | None = None
    """Generates with the weights that the judge's setting `model` or `weights` names. None: it names none."""
    format: PromptFormat | None = None
    """The prompt layer of these weights, else of the base model. None outside a run."""
    calibration: Calibration | None = None
    """Of a fitted judge. None: it was not calibrated, and its own probability stands."""
    judges: Callable[[str, Mapping[str, object]], Judge] | None = None
    """Makes a judge out of its name and its settings, for a judge that is made of others. None outside a run."""
    count: Callable[[Counted], None] = uncounted
    """To be told of every engine that the plugin makes itself, so that its tokens count in the costs of the run."""
    images: Images | None = None
    """Where pictures of pages are kept. None outside a run."""


# --- Policy optimizers: advantages (or finer credit) of an update, then the loss of each of its micro-batches.

# The least that an optimizer does is `PolicyOptimizer.advantages`: one number per trajectory, from rewards and groups.
# One that needs more (values of a critic, a reference policy, pages, step rewards) has `wants`, `credit` or both too,
# and may answer with a number per row or per token. No torch is needed for it; sequences hold one number per agent
# token.
#
# Words: a *row* is one step of a trajectory, its *agent tokens* are what the policy said in it. Observation tokens are
# not part of any sequence here, so that discounts, values and means cannot run over them.


@runtime_checkable
class PolicyOptimizer(Protocol):
    """Group baseline and loss of one algorithm. What it may have besides: `Wants`, `AssignsCredit`, `HasCritic`."""

    needs_trajectory_ratio: bool
    """True when the loss needs `log_ratio_sum_N` for trajectories that lie in several micro-batches."""

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
        """One advantage per trajectory; None rewards leave the baseline and get 0."""
        ...

    def loss(self, batch: LossInput) -> LossOutput:
        """The loss of one micro-batch; its docstring names the equation and the sign."""
        ...


Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class CriticSpec:
    """A critic that the trainer hosts: a copy of the policy's body with a head of its own, trained beside the policy.

    `outputs` numbers per state; the states are those before each agent token (`at` "tokens") or before each row
    ("rows"). `lr` is its own peak learning rate, with the policy's warm-up and decay; `max_grad_norm` its own clipping.
    """

    lr: float
    outputs: int = 1
    at: Literal["tokens", "rows"] = "tokens"
    max_grad_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class Wants:
    """What an optimizer needs beside rewards and groups. The default needs nothing."""

    old_in_credit: bool = False
    """`credit` reads `CreditRow.old_logps`."""
    reference_in_credit: bool = False
    """`credit` reads `CreditRow.ref_logps`."""
    reference_in_loss: bool = False
    """The loss reads `LossInput.ref_logp_RT`."""
    critic: CriticSpec | None = None
    """`credit` reads `CreditRow.values`, and `critic_loss` trains what gives them."""
    refills: int = 0
    """Rounds of further groups played for those that `credit` leaves out, at most."""
    off_policy: Literal["ratio", "weights", "any", "never"] = "ratio"
    """How the loss takes rollouts that an earlier version of the policy played (`rl.max_staleness`). `ratio`: by its
    ratio to `LossInput.old_logp_RT`, which are then the sampler's. `weights`: it has no ratio, so that each token's
    gradient is weighed with a truncated importance weight. `any`: it is right for rollouts of any policy, such as a
    regression, and nothing is corrected. `never`: it is right for the policy's own rollouts only, and others are
    refused before the run begins."""


def wants(optimizer: PolicyOptimizer) -> Wants:
    """What an optimizer needs; nothing for one that does not say. Needs no `credit`: a loss can want a reference."""
    wanted: Wants = getattr(optimizer, "wants", Wants())
    return wanted


@runtime_checkable
class AssignsCredit(Protocol):
    """A policy optimizer that gives credit itself."""

    def credit(self, batch: CreditInput) -> Credit:
        """Advantages of the whole update, and targets for the critic if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class CreditRow:
    """One row: `step` is its place in the trajectory, `anchor` the page as text, `reward` what the step itself earned.

    `reward` comes beside the verdict on the trajectory, not instead of it: environments say it in `StepFacts.reward`.
    `values` holds the critic's outputs for each agent token, or one entry for the row when the critic looks at rows.
    """

    trajectory: int
    step: int
    tokens: int
    anchor: str = ""
    reward: float = 0.0
    old_logps: Sequence[float] = ()
    ref_logps: Sequence[float] = ()
    values: Sequence[Sequence[float]] = ()


@dataclass(frozen=True, slots=True)
class CreditInput:
    """All trajectories and rows of one update.

    `rewards` are verdicts in the judge's units (None = could not be graded), `groups` the task that a trajectory is
    compared within. `correct` is the plain success behind the reward and `lengths` the length in tokens; where they are
    not given, success is a reward above 0 and the length the number of agent tokens.
    """

    rewards: Sequence[float | None]
    groups: Sequence[str]
    rows: Sequence[CreditRow] = ()
    correct: Sequence[bool | None] | None = None
    lengths: Sequence[int] | None = None

    @property
    def graded(self) -> list[float | None]:
        """The rewards, None where there is none or it is nan."""
        return [None if r is None or math.isnan(r) else float(r) for r in self.rewards]

    def steps(self) -> list[list[int]]:
        """For each trajectory its rows, as indices, in the order of steps."""
        out: list[list[int]] = [[] for _ in self.rewards]
        for index in sorted(range(len(self.rows)), key=lambda i: self.rows[i].step):
            out[self.rows[index].trajectory].append(index)
        return out

    def tokens(self) -> list[int]:
        """Agent tokens of each trajectory."""
        out = [0] * len(self.rewards)
        for row in self.rows:
            out[row.trajectory] += row.tokens
        return out


@dataclass(frozen=True, slots=True)
class Credit:
    """Who gets how much. The finest of `tokens`, `rows` and `advantages` that is there is what the loss sees.

    `advantages` has one number per trajectory (beside finer credit: the largest in size, so that 0 means that nothing
    of it moves the policy), `rows` one per row, `tokens` one per agent token of each row. `row_mask` is True for rows
    that stay in the batch: the others leave loss and denominators. `targets` are what the critic should have said, one
    per agent token or one per row as it looks, with None for what it cannot learn from; `values` what it said (outputs
    per state), which the loop adds. `scalable` is False when advantages are targets of a regression, which no factor
    may change.
    """

    advantages: Sequence[float]
    rows: Sequence[float] | None = None
    tokens: Sequence[Sequence[float]] | None = None
    row_mask: Sequence[bool] | None = None
    targets: Sequence[Sequence[float | None]] | None = None
    values: Sequence[Sequence[Sequence[float]]] | None = None
    scalable: bool = True
    metrics: Mapping[str, float] = field(default_factory=dict)

    def scaled(self, negative: float) -> Credit:
        """A copy whose negative advantages are multiplied by `negative`.

        Made smaller where successes are few: most tokens then have a negative one, and `stop` would die out.
        """
        if not self.scalable or negative == 1.0:
            return self

        def scale(values: Sequence[float]) -> list[float]:
            return [a * negative if a < 0 else a for a in values]

        return replace(
            self,
            advantages=scale(self.advantages),
            rows=None if self.rows is None else scale(self.rows),
            tokens=None if self.tokens is None else [scale(row) for row in self.tokens],
        )

    def part(self, trajectories: Sequence[int], rows: Sequence[int]) -> Credit:
        """The credit of some trajectories and some of their rows, in the order given."""

        def of_rows(entries: Sequence[Entry] | None) -> list[Entry] | None:
            return None if entries is None else [entries[i] for i in rows]

        return replace(
            self,
            advantages=[self.advantages[i] for i in trajectories],
            rows=of_rows(self.rows),
            tokens=of_rows(self.tokens),
            row_mask=of_rows(self.row_mask),
            targets=of_rows(self.targets),
            values=of_rows(self.values),
        )

    def moves(self, row: int, trajectory: int) -> bool:
        """Whether the policy gradient of a row can differ from 0."""
        if self.tokens is not None:
            return any(self.tokens[row])
        return (self.advantages[trajectory] if self.rows is None else self.rows[row]) != 0.0


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One training row: a prompt that is masked, a response that is trained on.

    `trajectory` is the index of its trajectory in the batch; `weight` scales a supervised row.
    """

    prompt: Prompt
    response_ids: tuple[int, ...]
    trajectory: int = 0
    weight: float = 1.0


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
class HasCritic(Protocol):
    """A policy optimizer with a critic."""

    def critic_loss(self, batch: ValueInput) -> LossOutput:
        """The micro-batch's share of the critic's loss."""
        ...


@dataclass(frozen=True, slots=True)
class ValueInput:
    """What a critic's loss sees of one micro-batch. R rows, T states (1 for a critic that looks at rows), O outputs.

    `output_RTO` carries the gradient; `mask_RT` is True where there is a target, and what stands elsewhere is ignored.
    `old_RTO` is what the critic said before the update; `states` counts targets in the whole batch.
    """

    output_RTO: torch.Tensor
    old_RTO: torch.Tensor
    target_RT: torch.Tensor
    mask_RT: torch.Tensor
    states: int


# --- Engines: tokens in, tokens out.


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt for an engine. Tokens in, tokens out.

    `temperature` 0 is greedy. Sampling depends on `seed` alone, never on which other requests share the batch.
    Generation ends after any of `stop_ids` (which is kept in the output), after the token that completes any of the
    texts in `stop` (kept too; for engines that know the tokenizer), or after `max_new_tokens`.
    """

    prompt: Prompt
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens with their natural-log probabilities under the distribution they were drawn from.

    `weights_version` is the `Engine.weights_version` that drew them, where weights may change while a request waits;
    None: the one that the engine had when it was asked.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool
    weights_version: int | None = None


@dataclass(slots=True)
class EngineStats:
    """What an engine has done: requests, all and distinct prompt tokens, new tokens, batches, and seconds of work.

    `image_tokens` are those prompt tokens that stand for images. `starts` counts servers that it started, such as vLLM.
    """

    requests: int = 0
    prompt_tokens: int = 0
    computed_prompt_tokens: int = 0
    new_tokens: int = 0
    batches: int = 0
    seconds: float = 0.0
    starts: int = 0
    image_tokens: int = 0


@runtime_checkable
class Engine(Protocol):
    """Turns prompts into tokens. Calls of concurrent coroutines are gathered into one batch.

    An engine plugin must write `generate` and `choice_logprobs`; what else it leaves out is as in `BaseEngine`, from
    which it may inherit and need not.
    """

    weights_version: int | None
    """Updates of this run that the weights have had, those of earlier phases included; None: nobody counts them. RL
    sets it when it begins or goes on, and `weights_changed` advances it."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion. Raises `EngineError` for a prompt that the model cannot take."""
        ...

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        """Natural-log probability of each token of `choices` as the next token after the prompt."""
        ...

    @property
    def correction(self) -> float:
        """Cap of the importance weights that make up for probabilities which are not the trainer's; 0 = they are."""
        ...

    @property
    def mismatch(self) -> Mapping[str, float]:
        """Metrics of an update: what the engine found when it got the weights, such as `engine.probe_mean` in nats."""
        ...

    @property
    def stats(self) -> EngineStats:
        """What it has done so far; a stage's costs count `new_tokens`."""
        ...

    def weights_changed(self) -> None:
        """Weight sync, called once after each update: requests from now on are answered with the new weights.

        An engine may push them now or before its next request.
        """
        ...

    def detach(self) -> bool:
        """Answer from a copy of the weights from now on, so that rollouts go on while the trainer changes the model.

        False where the engine cannot: it computes with the trainer's own weights, or gives it the memory. The ages of
        rollouts depend on it. Where settings decide that are in no cache key (`WITHOUT_EFFECT`), their class has the
        answer too, as a property `detaches`.
        """
        ...

    async def take_weights(self) -> None:
        """`weights_changed` of a detached engine, also while requests are on their way: the copy becomes the model as
        it is. Requests that run end with the old weights; later ones are answered with the new ones."""
        ...

    async def start(self) -> None:
        """Start what takes long, which a first request would start. The engines of a stage are started side by side."""
        ...

    async def rest(self) -> None:
        """Give memory to the trainer until the next request."""
        ...

    async def close(self) -> None:
        """End what it holds open."""
        ...

    @staticmethod
    def require() -> None:
        """Asked of the class before a run begins: raise `MissingError` when a package that it needs is missing."""
        ...


class BaseEngine:
    """The defaults of `Engine` for all but its first two methods: the trainer's own probabilities, nothing to free."""

    lasting: ClassVar[bool] = False
    """Whether what `start` starts outlives the engine, in `EngineContext.services`: then it is started for every role
    at once, before the first of them is asked."""
    weights_version: int | None = None
    correction: float = 0.0
    mismatch: Mapping[str, float] = MappingProxyType({})

    @cached_property
    def stats(self) -> EngineStats:
        """Counters that stay 0 unless the engine counts."""
        return EngineStats()

    def weights_changed(self) -> None:
        """Advance the version, where it is counted."""
        if self.weights_version is not None:
            self.weights_version += 1

    def detach(self) -> bool:
        """Not possible."""
        return False

    async def take_weights(self) -> None:
        """The model's own weights are in use."""
        self.weights_changed()

    async def start(self) -> None:
        """Nothing takes long."""

    async def rest(self) -> None:
        """Nothing to give."""

    async def close(self) -> None:
        """Nothing is open."""

    @staticmethod
    def require() -> None:
        """Nothing is needed."""


Request = TypeVar("Request")
Result = TypeVar("Result")
Request_contra = TypeVar("Request_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class RequestQueue(Protocol[Request_contra, Result_co]):
    """The requests of one kind of engine call that wait for their batch."""

    async def ask(self, request: Request_contra) -> Result_co:
        """Wait for the batch that holds this request; raises what the batch raised."""
        ...


class Batching(Protocol):
    """Gathers the engine calls of concurrent episodes into batches (`dynaweb.engines.scheduler.Lockstep`)."""

    def queue(self, run: Callable[[list[Request]], Sequence[Result]]) -> RequestQueue[Request, Result]:
        """A queue whose batches are computed by `run`: one result for each request, in order."""
        ...


class Weights(Protocol):
    """A model in memory with what belongs to it, as a run loads it (`dynaweb.pipeline.artifacts.LoadedModel`)."""

    @property
    def model(self) -> torch.nn.Module:
        """The module, on its device; training changes it in place."""
        ...

    @property
    def tokenizer(self) -> Any:
        """A Hugging Face tokenizer."""
        ...

    @property
    def format(self) -> PromptFormat:
        """The prompt layer for the tokenizer."""
        ...

    @property
    def vision(self) -> Vision | None:
        """How the model sees; None for one that reads text alone."""
        ...


class Vision(Protocol):
    """What makes a model's inputs of prompts with images: its processor, and where the bytes of images are.

    Shapes: B rows, T tokens.
    """

    image_id: int
    """The token that stands for a part of an image."""
    unwritten: tuple[int, ...]
    """Ids that stand for images and videos; a model that wrote one would be asked for an image that is not there."""

    @property
    def template(self) -> str:
        """The processor's chat template; '' where it has none."""
        ...

    @property
    def placeholder(self) -> str:
        """What the chat template writes for an image."""
        ...

    @property
    def control(self) -> str:
        """A text with all control tokens of images."""
        ...

    def expansion(self, image: Image) -> str:
        """The text of control tokens that stands for an image in a prompt; it depends on the image's size alone."""
        ...

    def inputs(self, prompts: Sequence[Prompt]) -> dict[str, torch.Tensor]:
        """What the model's forward pass takes of the prompts' images, such as `pixel_values`, in the order of the
        prompts; empty without images. Raises `EngineError` for an image that is missing, damaged or does not fit the
        prompt."""
        ...

    def token_types(self, ids_BT: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the forward pass takes to tell tokens of images from text ([B, T]); empty where it needs nothing."""
        ...

    # What engines are given that have a processor of their own.

    def unexpanded(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's ids with one placeholder for each image, as a processor takes them. Raises `EngineError` where
        an image's tokens are not in the prompt."""
        ...

    def picture(self, image: Image) -> bytes:
        """An image as a PNG in RGB and nothing else, which every reader takes alike. Raises `ImageError` for one that
        is missing or damaged."""
        ...

    def example(self, image: Image) -> Prompt:
        """A user's turn with an image and nothing else, and the beginning of the reply."""
        ...

    def reading(self, read: Callable[[Image], bytes]) -> Vision:
        """The same model's vision on other images: `read` gives the bytes of one."""
        ...

    def save_pretrained(self, folder: Path) -> None:
        """Write the processor into a folder, tokenizer and template among it."""
        ...


class Service(Protocol):
    """Something that engines use and a run keeps from stage to stage, such as the process of a server."""

    async def close(self) -> None:
        """End it. Called once, when the run is over, however it ends."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext(PluginContext):
    """What an engine is given."""

    weights: Weights
    """The model that it serves and follows: training changes it in place."""
    batching: Batching
    """Gathers the calls of concurrent episodes, so that the same requests share a batch in every run."""
    role: Literal["policy", "wm", "reward"] = "policy"
    """Whom it serves: policy, world model or judge."""
    roles: int = 1
    """How many roles of the run have this engine with these settings."""
    adapter_rank: int = 0
    """The largest rank of low-rank adapters on any model that the run generates with."""
    services: MutableMapping[str, Service] | None = None
    """What outlives the engines of a stage, under names that say all it depends on: an engine puts there what takes
    long to start, and uses what it finds. The run closes them at its end. None: there is no run, and an engine closes
    what it starts."""


# --- Prompts: what models read, and how their replies are read.


def text_ids(prompt: Prompt, reader: str) -> tuple[int, ...]:
    """The ids of a prompt, for a `reader` that takes tokens alone. Raises `EngineError` for a prompt with images."""
    if prompt.images:
        raise EngineError(
            f"{reader} cannot see: it was given a prompt with {len(prompt.images)} images. Use a prompt format without "
            "images, or a model and an engine that read them"
        )
    return prompt.ids


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply taken apart; `error` says why there is no action, in words that a model can read."""

    text: str
    reasoning: str = ""
    action: Action | None = None
    error: str = ""


class PromptFormat(Protocol):
    """What every prompt layer offers. All methods are pure; token ids are plain ints."""

    stop_ids: tuple[int, ...]
    """Tokens that end a reply."""
    pad_id: int
    yes_id: int
    no_id: int

    def policy_prompt(self, task: Task, observation: Observation, history: Sequence[Action]) -> Prompt:
        """Instructions, goal, earlier actions and the page: everything before the policy's reply."""
        ...

    def policy_reply(self, observation: Observation, action: Action, reasoning: str = "") -> tuple[int, ...]:
        """The tokens of a reply that does `action`, stop token included: a supervised target."""
        ...

    def parse_reply(self, token_ids: Sequence[int], observation: Observation) -> ParsedReply:
        """Read a sampled reply. Never raises. What a model thinks before it answers is never read as an action, nor is
        what was cut in the middle: a reply whose last token is none of `stop_ids` has an action only where that is
        whole."""
        ...

    def world_model_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> Prompt:
        """The goal, the page and what is done on it, by name: everything before the change."""
        ...

    def full_page_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> Prompt:
        """The same for a world model that writes the whole next page."""
        ...

    def rewrite_prompt(
        self, observation: Observation, action: Action, change: str, history: Sequence[Action] = (), goal: str = ""
    ) -> Prompt:
        """The same for a model that writes the whole next page from a change in words."""
        ...

    def world_model_target(self, text: str) -> tuple[int, ...]:
        """The tokens of a world model's answer, stop token included."""
        ...

    def judge_prompt(self, trajectory: Trajectory) -> Prompt:
        """Goal, actions, answer and final page; the next token is YES or NO."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The answer in sampled tokens: without the stop token, and without a thought before it."""
        ...
