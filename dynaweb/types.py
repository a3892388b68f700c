"""The words of the project as frozen values: what a task, an observation, a step and a dream are.

Nothing here imports torch, a browser or a plugin. Collections are tuples, so that every value hashes, compares and
pickles. `to_json`/`from_json` in `dynaweb.data.codec` turn them into plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from dynaweb.web.delta import Delta

ActionKind = Literal[
    "click",
    "type",
    "select",
    "hover",
    "press",
    "scroll",
    "goto",
    "go_back",
    "go_forward",
    "new_tab",
    "tab_focus",
    "close_tab",
    "wait",
    "stop",
]
ACTION_KINDS: tuple[ActionKind, ...] = get_args(ActionKind)
TARGETED: frozenset[str] = frozenset({"click", "type", "select", "hover"})
"""Kinds of action that need an element of the page."""

Source = Literal["dream", "real", "expert"]
EndReason = Literal["stop", "max-steps", "invalid", "terminal", "infrastructure"]
Split = Literal["pretrain", "train", "validation", "test"]


@dataclass(frozen=True, slots=True)
class Task:
    """A goal in words, where it starts, and how success is checked.

    `evaluation` is the `eval` object of WebArena's task format. `meta` holds what an environment needs to reset
    (site seed, locale, template, parameters); `best_steps` is the length of the shortest known solution, stop included.
    """

    id: str
    intent: str
    start_url: str
    sites: tuple[str, ...] = ()
    split: Split = "train"
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""
    best_steps: int | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """One element of an accessibility tree.

    `id` is the number shown to the model, 1..N in page order and valid for one observation only. `depth` is the
    level in the tree (0 = top). `ref` is the environment's own handle of the element; it never reaches a model
    and takes no part in comparisons.
    """

    id: int
    role: str
    name: str = ""
    value: str | None = None
    props: tuple[tuple[str, str], ...] = ()
    depth: int = 0
    ref: str | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Tab:
    """One open tab of the browser."""

    title: str
    url: str
    current: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees of a page: url, title, tabs and the accessibility tree in page order.

    `notice` is feedback of the environment about the last action (a dialog's message, a refused click, a download).
    """

    url: str
    nodes: tuple[Node, ...]
    title: str = ""
    tabs: tuple[Tab, ...] = ()
    notice: str = ""
    truncated: bool = False

    def node(self, node_id: int) -> Node | None:
        """The element with that number, or None. Numbers run from 1 in page order."""
        if 1 <= node_id <= len(self.nodes) and self.nodes[node_id - 1].id == node_id:
            return self.nodes[node_id - 1]
        return next((node for node in self.nodes if node.id == node_id), None)


@dataclass(frozen=True, slots=True)
class Action:
    """One parsed browser action.

    `target` is an element number of the observation that the action answers; `target_role` and `target_name` are
    recorded beside it, since numbers mean nothing on the next page. `text` is the typed text, the option, the keys,
    the url, the scroll direction or the answer, by kind; `index` is a tab number.
    """

    kind: ActionKind
    target: int | None = None
    text: str = ""
    enter: bool = False
    index: int | None = None
    target_role: str = ""
    target_name: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: what was seen, what was said, and the exact tokens.

    `action` is None when the reply could not be parsed; `error` then says why. `error` is also set when the
    environment refused the action. `prompt_ids`/`response_ids` are what the engine consumed and sampled and
    `logprobs` the sampler's natural-log probabilities of `response_ids`; experts leave them empty.
    """

    observation: Observation
    action: Action | None
    reasoning: str = ""
    reply: str = ""
    error: str = ""
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's verdict: `score` in [0, 1], or None when the trajectory could not be graded (None is not 0).

    `ruled` marks a score that a rule of the judge gave without asking its model: it says nothing of how good that is.
    """

    score: float | None
    probability: float | None = None
    why: str = ""
    ruled: bool = False


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The steps of one episode, its final observation, its reward, and where it came from."""

    id: str
    task: Task
    steps: tuple[Step, ...]
    final: Observation | None
    source: Source
    end: EndReason
    reward: float | None = None
    judgement: Judgement | None = None
    group: str = ""
    seed: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answer(self) -> str | None:
        """The text of the closing `stop` action, or None when the episode did not stop by itself."""
        last = self.steps[-1].action if self.steps else None
        return last.text if last is not None and last.kind == "stop" else None

    def scored(self, judgement: Judgement, reward: float | None) -> Trajectory:
        """A copy that carries a verdict."""
        return replace(self, judgement=judgement, reward=reward)


@dataclass(frozen=True, slots=True)
class Transition:
    """(observation, action, next observation) taken from a real browser; unrewarded."""

    observation: Observation
    action: Action
    next_observation: Observation
    task_id: str = ""
    source: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """An environment's answer to an action: the new page, whether the episode is over, and why if refused."""

    observation: Observation
    done: bool = False
    error: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A world model's answer: the dreamed page, or None with the reason why there is none.

    `logprob` is the mean natural-log probability of the tokens of the answer that was read (None = unknown),
    `answer_tokens` how many these are (0 = unknown), `tokens` how many were generated in all `attempts`; `confidence`
    the expected fidelity of the page in [0, 1], where it was calibrated. `recalled`: the page is a real one, which a
    memory of the same step gave.
    """

    next_observation: Observation | None
    delta: Delta | None = None
    reasoning: str = ""
    done: bool = False
    error: str = ""
    text: str = ""
    tokens: int = 0
    logprob: float | None = None
    attempts: int = 1
    confidence: float | None = None
    answer_tokens: int = 0
    recalled: bool = False
