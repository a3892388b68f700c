"""The words of the project as frozen values: what a task, an observation, a step and a dream are.

Nothing here imports torch, a browser or a plugin. Collections are tuples, so that every value hashes, compares and
pickles. `to_json`/`from_json` in `dynaweb.data.codec` turn them into plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

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
"""Why an episode, dreamed or real, ended. `dynaweb.rollout.episode` says it.

stop            the agent said `stop`
max-steps       the limit of steps; for dreams `dream.horizon`
invalid         a reply that is no action, or a refused action, where `dream.invalid_ends`; always for an agent that
                would repeat itself
terminal        the environment: the page says that the task is over. In a dream, the world model predicts the end,
                wrote no page (`StepFacts.world_model_error`), or cannot be trusted any more (`StepFacts.untrusted`)
infrastructure  something broke that the agent is not to blame for (`EpisodeFacts.failure`)
"""
Split = Literal["pretrain", "train", "validation", "test"]
Props = tuple[tuple[str, str], ...]
"""Properties of an element in page order: name and text, such as `("checked", "true")`."""


@dataclass(frozen=True, slots=True)
class Task:
    """A goal in words, where it starts, and how success is checked.

    `evaluation` is the `eval` object of WebArena's task format. `meta` holds what an environment needs to reset
    (site seed, locale, template, parameters); `best_steps` is the length of the shortest known solution, stop included.
    `images` are pictures that belong to the goal; a policy that sees is shown them before its page.
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
    images: tuple[Image, ...] = ()

    @property
    def site(self) -> str:
        """The site that it plays on: several are joined by `+`, and `-` stands for none."""
        return "+".join(self.sites) or "-"

    @property
    def kind(self) -> str:
        """What kind of task it is, for tables: what its environment says, else its template; `-` stands for none."""
        return str(self.meta.get("kind") or self.template or "-")

    @property
    def site_key(self) -> str:
        """What hold-outs split by: the generated site it plays on, where its environment names one, else itself."""
        seed = self.meta.get("site_seed")
        return self.id if seed is None else f"{self.split} {seed}"


@dataclass(frozen=True, slots=True)
class Node:
    """One element of an accessibility tree.

    `id` is the number shown to the model, 1..N in page order and valid for one observation only. `depth` is the
    level in the tree (0 = top). `ref` is the environment's own handle of the element, `address` where a link leads, as
    an absolute address ('' = no link, or not known). Neither reaches a model nor takes part in comparisons.
    """

    id: int
    role: str
    name: str = ""
    value: str | None = None
    props: Props = ()
    depth: int = 0
    ref: str | None = field(default=None, compare=False, repr=False)
    address: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Tab:
    """One open tab of the browser."""

    title: str
    url: str
    current: bool = False


@dataclass(frozen=True, order=True, slots=True)
class Image:
    """A picture, named by its content: the SHA-256 of its bytes, in hexadecimal digits, and its size in pixels. The
    bytes are kept outside (`dynaweb.data.images.ImageStore`)."""

    sha256: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Screenshot:
    """A picture of what the window shows of a page.

    `viewport` is the size of the window in CSS pixels, `scale` how many pixels of the picture one of these is. `marks`:
    the elements that can be acted on are framed and numbered in it, with the ids of the observation.
    """

    image: Image
    viewport: tuple[int, int]
    scale: float = 1.0
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees of a page: url, title, tabs and the accessibility tree in page order.

    `notice` is feedback of the environment about the last action (a dialog's message, a refused click, a download).
    `screenshot` is a picture of the page, where the setting `observation.modality` asks for one; it takes no part in
    comparisons, since a page is what it says and does.
    """

    url: str
    nodes: tuple[Node, ...]
    title: str = ""
    tabs: tuple[Tab, ...] = ()
    notice: str = ""
    truncated: bool = False
    screenshot: Screenshot | None = field(default=None, compare=False)

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


@dataclass(frozen=True, order=True, slots=True)
class Prompt:
    """What a model reads before it answers: token ids, and the pictures that they refer to, in their order.

    The value as a whole is its identity: equal tokens with other pictures are another prompt. Its length is that of
    `ids`. Prompts are in the order of their ids, then of their pictures. `cut` counts the tokens of the page, of
    earlier actions and of the goal that were left out, since the model has no room for them.
    """

    ids: tuple[int, ...] = ()
    images: tuple[Image, ...] = ()
    cut: int = field(default=0, compare=False)

    def __len__(self) -> int:
        return len(self.ids)


NO_PROMPT = Prompt()


ORIGINS: Mapping[str, str] = {"r": "remembered", "c": "copied", "i": "invented"}
"""Origins of the elements of a dreamed page. `r`: on a real page that a memory gave, or that the dream began on. `c`:
the world model kept it of a page on which it was real. `i`: a world model wrote it, in this step or before."""


class History(list[Action]):
    """The actions of an episode so far, oldest first, with the pages on which they were done.

    To whoever asks for no page it is a sequence of actions; prompt layers that show earlier pages read `pages`, which
    has one entry for each action.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[Observation] = []

    def add(self, page: Observation, action: Action) -> None:
        """An action, and the page on which it was done."""
        self.append(action)
        self.pages.append(page)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What is known of a step besides its pages: rewards, metrics and reports are decided by it.

    The environment says it with its `StepResult`. A dream fills in the upper half, a real environment the lower.
    """

    dreamed: bool = False
    """A world model was asked for the page that follows; `world_model_error` says whether it wrote none."""
    recalled: bool = False
    """The page that follows is a real one, which a memory gave."""
    imagined: bool = False
    """The page that follows is one that a world model wrote, in this step or before, or what code made of one."""
    tokens: int = 0
    """Tokens that the world model generated for this step, in all attempts."""
    logprob: float | None = None
    """Mean natural-log probability of the tokens of its answer; None = unknown."""
    confidence: float | None = None
    """Expected fidelity of the page in [0, 1]; None where it was not calibrated."""
    world_model_error: str = ""
    """Why the world model wrote no page, which ends the dream; the policy is not to blame."""
    untrusted: str = ""
    """Why the dream ended though it could go on: its pages can no longer be trusted."""
    reward: float | None = None
    """Earned by this step beside the verdict on the trajectory, in the judge's units; None = nothing. An environment's
    own score of the whole task does not belong here: the verdict would count twice."""
    blocked: str = ""
    """What keeps the agent out on the page that follows: a captcha, a login."""
    screenshot: str = ""
    """Path of a picture of the page that follows, for judges and reports; the policy does not see it."""
    origins: str = ""
    """Where each element of an `imagined` page comes from, a letter each (see `ORIGINS`); '' for a real page."""


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """What is known of an episode besides its steps and the judge's verdict."""

    verdict: Judgement | None = None
    """The environment's own verdict, taken when a real episode ended; None: it was not graded."""
    failure: str = ""
    """What broke, where the end is `infrastructure`."""
    update: int | None = None
    """The update, counted from 0, whose rollout it was; None: of none."""
    screenshots: tuple[str, ...] = ()
    """Paths of pictures of all its pages, the first one included; empty: those of its steps are all there are."""
    advantage: float | None = None
    """What the optimizer of its `update` made of its reward, before any scaling; None: not graded, or not recorded."""


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: what was seen, what was said, and the exact tokens.

    `action` is None when the reply could not be parsed; `error` then says why. `error` is also set when the
    environment refused the action. `prompt` is what the engine consumed, `response_ids` what it sampled and `logprobs`
    the sampler's natural-log probabilities of `response_ids`; experts leave them empty. `policy_version` counts the
    updates of this run that the policy had had when it played the step; None for experts, and where nobody counts.
    `info` is room for what a plugin wants to keep; nothing in `dynaweb` reads it.
    """

    observation: Observation
    action: Action | None
    reasoning: str = ""
    reply: str = ""
    error: str = ""
    prompt: Prompt = NO_PROMPT
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    policy_version: int | None = None
    facts: StepFacts = field(default_factory=StepFacts)


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
    """The steps of one episode, its final observation, its reward, and where it came from.

    `info` is room for what a plugin wants to keep; nothing in `dynaweb` reads it.
    """

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
    facts: EpisodeFacts = field(default_factory=EpisodeFacts)

    @property
    def answer(self) -> str | None:
        """The text of the closing `stop` action, or None when the episode did not stop by itself."""
        last = self.steps[-1].action if self.steps else None
        return last.text if last is not None and last.kind == "stop" else None

    @property
    def following(self) -> tuple[Observation | None, ...]:
        """The page after each step, one for each step; None after the last one where no page came back."""
        return (*(step.observation for step in self.steps[1:]), self.final) if self.steps else ()

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
    """An environment's answer to an action: the new page, whether the episode is over, and why if refused.

    `facts` and `info` become those of the step.
    """

    observation: Observation
    done: bool = False
    error: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    facts: StepFacts = field(default_factory=StepFacts)


@dataclass(frozen=True, slots=True)
class Keep:
    """The old nodes `first` to `last` (numbers of the old page, both included) stay as they are."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Add:
    """A new node. Its id is 0: numbers are given when the new page is complete."""

    node: Node


@dataclass(frozen=True, slots=True)
class Change:
    """The old node `id` stays, with this value and these properties instead of its own.

    The property `options` is inherited when `props` does not hold it: what a list offers rarely changes.
    """

    id: int
    value: str | None = None
    props: Props = ()


Op = Keep | Add | Change


@dataclass(frozen=True, slots=True)
class Delta:
    """How to rebuild the new page out of the old one: `ops` in the order of the new page; what is not kept is gone.

    `url`, `title` and `truncated` are None where nothing changes; `notice` is the new page's own. `same` says that
    nothing at all changes, `replaced` that (almost) nothing of the old page is kept. `sentence` puts the change in
    words; `repairs` tells what a lenient parser mended. Neither takes part in comparisons.
    """

    ops: tuple[Op, ...] = ()
    url: str | None = None
    title: str | None = None
    notice: str = ""
    truncated: bool | None = None
    same: bool = False
    replaced: bool = False
    sentence: str = field(default="", compare=False)
    repairs: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A world model's answer: the dreamed page, or None with the reason why there is none.

    `logprob` is the mean natural-log probability of the tokens of the answer that was read (None = unknown),
    `answer_tokens` how many these are (0 = unknown), `tokens` how many were generated in all `attempts`; `confidence`
    the expected fidelity of the page in [0, 1], where it was calibrated. `recalled`: the page is a real one, which a
    memory gave. `base` is the real page of the memory that the answer changes, None for the page before. `image` is a
    picture of the dreamed page as the window would show it, by a world model that draws (capability `draws`).
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
    base: Observation | None = None
    image: Image | None = None
