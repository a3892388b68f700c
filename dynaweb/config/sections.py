"""The sections of a recipe. Plugin sections (`wm`, `opt`, `reward`, `env`) are narrowed to the chosen plugin elsewhere.

Every field has its meaning, unit and, where a paper fixes it, the source. Defaults are those of the `dynaweb` recipe.
"""

from __future__ import annotations

import math
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dynaweb.config.keys import EVERY, Activity, Matters, NotKeyed
from dynaweb.config.server import Server
from dynaweb.masking import Secret

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


class Section(BaseModel):
    """Base of all sections: unknown keys are refused, values are frozen and checked."""

    MATTERS_TO: ClassVar[tuple[Activity, ...]] = EVERY
    """What the settings act on, for cache keys: each of them that does not say otherwise (`dynaweb.config.keys`)."""

    # Validators are built on first use: listing plugins or printing help then costs a third less time.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _single_words(cls, data: Any) -> Any:
        """A word or a number where a list belongs is a list of one; commas separate several words."""
        if not isinstance(data, dict):
            return data
        single = {
            name: _parts(data[name])
            for name, info in cls.model_fields.items()
            if isinstance(data.get(name), str | int | float) and not isinstance(data[name], bool) and _is_list(info)
        }
        return data | single if single else data


def _is_list(info: FieldInfo) -> bool:
    """Whether a setting is a list of any length, and takes no single word by a validator of its own."""
    kinds = [kind for kind in get_args(info.annotation) or () if kind is not NoneType]
    # Of `tuple[str, ...] | None` the list, of a list itself its own.
    kind = info.annotation if get_origin(info.annotation) in (tuple, list) else kinds[0] if len(kinds) == 1 else None
    if any(isinstance(one, BeforeValidator) for one in info.metadata):
        return False
    return get_origin(kind) is list or (get_origin(kind) is tuple and get_args(kind)[1:] == (Ellipsis,))


def _parts(value: str | float) -> list[Any]:
    return [part for one in value.split(",") if (part := one.strip())] if isinstance(value, str) else [value]


COLDEST = 0.01
"""Lowest temperature that is not 0: below it, logits that are divided by it leave the range of their precision."""


def _greedy_or_warm(temperature: float) -> float:
    if 0 < temperature < COLDEST:
        raise ValueError(f"a temperature is at least {COLDEST}, or exactly 0 for the likeliest token always")
    return temperature


Temperature = Annotated[float, Field(ge=0), AfterValidator(_greedy_or_warm)]
"""A sampling temperature, or 0: the likeliest token always."""


def _counts(values: tuple[int, ...]) -> tuple[int, ...]:
    if any(value < 1 for value in values):
        raise ValueError(f"{min(values)} is less than 1")
    twice = [value for value in dict.fromkeys(values) if values.count(value) > 1]
    if twice:
        raise ValueError(f"{twice[0]} is there more than once")
    return values


class Run(Section):
    """The run as a whole."""

    seed: int = 0
    """Every random choice of the run derives from it."""
    time_budget: Annotated[
        float, NotKeyed("a stage that it ends early has a key of its own, with the updates done")
    ] = Field(default=0.0, ge=0)
    """Minutes after which the RL stage ends early; 0 = counts, not clocks, end the stages. A later run goes on from
    there."""
    observers: Annotated[tuple[str, ...], NotKeyed("they are told, and change nothing")] = ()
    """Observers that are told what happens, such as `["tensorboard"]` (`--observe`); they change no result."""
    observer_settings: Annotated[dict[str, dict[str, Any]], NotKeyed("as observers")] = Field(default_factory=dict)
    """Their settings by name, such as `observer_settings.wandb.project = "mine"`."""
    log_every: int = Field(default=0, ge=0)
    """The progress display writes a line of metrics for every so many updates of a stage, and for each evaluation; 0 =
    none."""
    log_metrics: tuple[str, ...] = ("loss", "reward", "success", "invalid_rate", "entropy", "grad_norm")
    """Metrics of updates in these lines, by name or by the beginning of it; empty = all."""


_MODEL: tuple[Activity, ...] = (
    "sft",
    "graded",
    "judge-fit",
    "world-model",
    "drift",
    "rl",
    "judge-audit",
    "eval-weights",
)


class Model(Section):
    """The language model that plays policy, world model and judge."""

    MATTERS_TO = _MODEL

    path: str = "tiny"
    """`tiny` (shipped), `smollm2` (SmolLM2-135M-Instruct, out of a Python package), a folder, or the name of a Hugging
    Face causal language model."""
    format: Annotated[str, Matters(*_MODEL, "eval-server")] = "auto"
    """Prompt layer: `compact` for the tiny model, `chat` for models with a chat template (`auto` tells them apart),
    `webvoyager` for the same in the words and the grammar of WebVoyager's text-only agents, or a plugin's own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where weights live. `auto`: on a GPU where there is one; a stage of one machine is then taken by others, whose
    results are the same but for rounding. Stages on a device that is named are kept apart."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and forward passes; log-probabilities, losses and what AdamW moves are float32 always."""
    threads: Annotated[int, NotKeyed("how fast, not what")] = Field(default=0, ge=0)
    """CPU threads of torch; 0 = as many as there are cores."""
    micro_tokens: Annotated[int, NotKeyed("the same result in other parts")] = Field(default=4096, ge=1)
    """Tokens of one forward pass in training; batches are computed in parts of this size, with the same result."""
    max_prompt_tokens: int = Field(default=0, ge=0)
    """Longest prompt of world model and judge in tokens: of a longer page the lines that matter least are left out. 0 =
    as long as the model's context allows beside the longest answer, and 8,192 at most (760 with `compact`)."""
    template: dict[str, Any] = Field(default_factory=lambda: {"enable_thinking": False})
    """Arguments of the chat template, such as `template.enable_thinking = true` or `template.reasoning_effort = "low"`;
    a template that does not know one takes no notice."""
    checkpointing: Annotated[bool, NotKeyed("the same result with less memory")] = False
    """Activations are computed again in backward passes (arXiv 1604.06174): much less memory, a third more time."""


class EngineChoice(BaseModel):
    """Which engine answers for one role, with the engine's own settings beside its name."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True, allow_inf_nan=False)

    name: str = "transformers"
    """`transformers` (in this process), `vllm`, or the engine of another package."""

    @property
    def settings(self) -> dict[str, Any]:
        """The engine's own settings."""
        return dict(self.model_extra or {})


_POLICY: tuple[Activity, ...] = ("sft", "explore", "graded", "rl", "eval-weights", "eval-server")
"""What asks a policy, or learns from what it is asked."""


class Policy(Section):
    """How the policy is played. `[wm.engine]` and `[reward.engine]` say the same of the world model and the judge."""

    MATTERS_TO = ("explore", "graded", "rl", "eval-weights")
    FILES: ClassVar[frozenset[str]] = frozenset({"prompt"})

    engine: EngineChoice = EngineChoice()
    """What turns the policy's prompts into tokens."""
    server: Annotated[Server, Matters("eval-server")] = Field(default_factory=Server)
    """The server of a policy to compare with: `dynaweb eval --policy server:NAME`."""
    prompt: Annotated[str, Matters(*_POLICY)] = ""
    """A file with the policy's prompt, in TOML (`dynaweb.policy.prompt_file`); empty = that of `model.format`. Chat
    models only."""
    max_prompt_tokens: Annotated[int, Matters(*_POLICY)] = Field(default=0, ge=0)
    """Longest prompt of the policy in tokens; 0 = as `model.max_prompt_tokens`."""
    max_new_tokens: Annotated[int, Matters(*_POLICY)] = Field(default=48, ge=1)
    """Longest reply of the policy in tokens. A model that thinks before it answers needs room for its thought: a reply
    that is cut inside of one is invalid, and so is one that is cut before its action is whole."""


class Backend(Section):
    """What turns losses into updates."""

    MATTERS_TO = ("sft", "judge-fit", "world-model", "rl")
    FILES: ClassVar[frozenset[str]] = frozenset({"config"})

    name: Literal["torch", "deepspeed", "fsdp"] = "torch"
    """`torch`: weights whole on every rank. `deepspeed`: ZeRO, spread over ranks. `fsdp`: torch's FSDP2, spread too."""
    stage: Literal[1, 2, 3] = 2
    """What `deepspeed` and `fsdp` spread over ranks: 1 the optimizer's state, 2 gradients too, 3 weights too."""
    offload: Annotated[bool, NotKeyed("where the state is kept, not what it is")] = False
    """DeepSpeed keeps the optimizer's state (and with stage 3 the weights) in the host's memory."""
    config: str = ""
    """A DeepSpeed JSON file of your own; it goes over what dynaweb sets, except for batch sizes and the optimizer."""


class Web(Section):
    """The browser."""

    MATTERS_TO = ("explore", "graded", "eval", "real-rollouts", "refresh", "validation")

    browser: Annotated[str, NotKeyed("which Chromium plays; pages are the same")] = ""
    """Path of a Chromium; empty = look for one (`dynaweb doctor` says which)."""
    endpoint: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        NotKeyed("where browsers run; pages are the same"),
        Secret("headers"),
        BeforeValidator(lambda value: value.split() if isinstance(value, str) else value),
    ] = ()
    """Addresses of browsers that run elsewhere: `http://HOST:PORT` of `dynaweb web serve` or of DevTools,
    `ws://HOST:PORT` of a Playwright server. Several share the sessions. `$NAME` stands for an environment variable,
    such as a token in `http://any:$NAME@HOST:PORT`. Empty = a browser of this machine."""
    proxy_port: Annotated[int, NotKeyed("where browsers elsewhere find this process")] = Field(
        default=0, ge=0, le=65535
    )
    """Port on 127.0.0.1 of the filter of hosts that browsers of `endpoint` connect through, where it has to be
    forwarded to them; 0 = any. `dynaweb web serve` needs none."""
    contexts: int = Field(default=16, ge=1)
    """Episodes that are open at once; their model calls share one batch."""
    workers: Annotated[int, NotKeyed("how fast, not what")] = Field(default=0, ge=0)
    """Browser operations that run at once; 0 = number of cores."""
    action_timeout: Annotated[float, NotKeyed("how long a slow machine may take")] = Field(default=3.0, gt=0)
    """Seconds that one browser operation may take."""
    settle: Annotated[float, Matters("demos", "experts", *MATTERS_TO)] = Field(default=2.0, ge=0)
    """Most seconds that a page is waited for once it has loaded: while requests or short timers are pending, it
    changes, its frames load, or it leads on to another one by itself."""


MAX_PIXELS = 50_000_000
"""Most pixels of one picture: of a file that claims more, reading it could take all memory."""


class ObservationSettings(Section):
    """What the policy is given of a page: its text, a picture of what the window shows, or both.

    With `text` the other settings act on nothing.
    """

    MATTERS_TO = (
        *("demos", "experts", "sft", "explore", "graded", "judge-fit", "rl", "eval", "judge-audit"),
        *("real-rollouts", "refresh", "validation", "eval-weights", "eval-server"),
        # A model that sees writes all prompts with its processor's template, those of a world model too.
        *("world-model", "drift"),
    )

    modality: Literal["text", "screenshot", "both"] = "text"
    """`text`: the accessibility tree. `screenshot`: a picture. `both`. A world model that does not draw dreams in text,
    so that dreams need `text` or `both`."""
    marks: bool = False
    """Frame and number in the picture the elements that can be acted on, with the numbers of the text (set-of-marks,
    arXiv 2310.11441). The page itself is not touched."""
    width: int = Field(default=1280, ge=64, le=8192)
    """Width of the window in CSS pixels."""
    height: int = Field(default=720, ge=64, le=8192)
    """Its height."""
    scale: float = Field(default=1.0, gt=0, le=4)
    """Pixels of the picture for one CSS pixel."""
    max_pixels: int = Field(default=0, ge=0)
    """Most pixels of a picture: one that would have more is taken at a smaller scale. 0 = no limit but that of all
    pictures (50 million)."""
    train_vision: bool = False
    """Train the model's vision too, with all of its weights or with adapters (`lora_rank`); else its language model and
    its output head alone."""

    @model_validator(mode="after")
    def _is_readable(self) -> ObservationSettings:
        if self.max_pixels and self.max_pixels < 64 * 64:
            raise ValueError(f"nothing can be read in a picture of {self.max_pixels} pixels; give 4096 or more")
        return self

    @property
    def pictures(self) -> bool:
        """Whether environments take pictures of pages."""
        return self.modality != "text"

    @property
    def picture_scale(self) -> float:
        """The scale that pictures are taken at: `scale`, or less where they would have too many pixels."""
        most = min(self.max_pixels or MAX_PIXELS, MAX_PIXELS)
        sides = self.width, self.height
        if math.prod(round(side * self.scale) for side in sides) <= most:
            return self.scale
        fitting = min(self.scale, math.sqrt(most / math.prod(sides)))
        # Whole pixels, so that no side is rounded up.
        return min(math.floor(side * fitting) / side for side in sides)


class PageView(Section):
    """What of a page the policy sees: settings that the plugins of browser environments share."""

    region: Literal["page", "viewport"] = "page"
    """All of the page, or only what the window shows."""
    max_nodes: int = Field(default=1500, ge=1)
    """Most elements that are shown; of a longer page those near the window, so that scrolling shows others."""
    max_options: int = Field(default=10, ge=0)
    """Options of a native list that are shown, beside the chosen ones and the number of all, until the list is clicked;
    0 = all. Any option can be chosen by its name."""

    @property
    def view_options(self) -> dict[str, Any]:
        """These settings as arguments of `BrowserPool`."""
        return {"region": self.region, "max_nodes": self.max_nodes, "max_options": self.max_options}


class Cluster(Section):
    """Where the processes of a run are placed by Ray: `dynaweb run --cluster`. No result depends on it."""

    MATTERS_TO = ()

    address: str = ""
    """`auto`: the Ray cluster that this machine belongs to, or that of `RAY_ADDRESS`; HOST:PORT of its head; or
    `local`, a new one of this machine alone. Empty = no cluster."""
    trainers: int = Field(default=1, ge=1)
    """Ranks of the trainer, each with a GPU where the cluster has GPUs."""
    trainer_cpus: float = Field(default=1.0, gt=0)
    """CPU cores of a rank; also its threads, where `OMP_NUM_THREADS` does not say otherwise."""
    servers: int = Field(default=0, ge=0)
    """vLLM servers for the roles whose engine is `vllm`, started as the role's engine says, each with as many GPUs as
    its `tensor_parallel`; 0 = none."""
    server_cpus: float = Field(default=1.0, gt=0)
    """CPU cores of a vLLM server."""
    server_python: str = ""
    """A Python with vLLM and dynaweb, by its path on the nodes; empty = that of the nodes."""
    server_options: tuple[str, ...] = ()
    """Further options of vLLM, such as `["--max-num-seqs", "64"]`."""
    browsers: int = Field(default=0, ge=0)
    """Browser pools (`dynaweb web serve`); 0 = browsers beside rank 0."""
    browser_cpus: float = Field(default=1.0, gt=0)
    """CPU cores of a browser pool."""
    sessions: int = Field(default=2, ge=1)
    """Browsers that a pool keeps ready. Each environment of the run plays in one of them."""
    wait: float = Field(default=60.0, gt=0)
    """Seconds that the cluster has to make room for all of it at once. One that starts nodes on demand wants more."""
    restarts: int = Field(default=3, ge=0)
    """How often the ranks are placed anew, to go on from the last checkpoint, after one of them has died."""


class Data(Section):
    """Expert demonstrations."""

    MATTERS_TO = ("demos",)

    experts: Annotated[Literal["few", "all"], NotKeyed("says which stage makes them, demos or experts")] = "few"
    """`few`: demonstrations of a few tasks, for SFT and RL alike. `all`: an expert for every RL task (the paper);
    demonstrations that are read stay all there are."""
    demos: Annotated[int, Field(ge=0)] | Annotated[str, Field(min_length=1)] = 0
    """Number of demonstrations of scripted experts when `few`; 0 = one for each task template. Or where to read them,
    so that no scripted expert is asked: a trajectory store (`.jsonl.gz`), a folder of stores, the folder of a run, or
    the name of a data set of the hub. Failed episodes are left out, those that nobody judged count as successes."""
    practice: Annotated[
        Literal["all", "new"], NotKeyed("stages hold which tasks are demonstrated where they leave them out")
    ] = "all"
    """Which training tasks exploration, graded episodes and reinforcement learning play. `all`: the demonstrated ones
    come first, as they do for everybody. `new`: others only, but for groups with experts (`rl.expert_share`). With many
    demonstrations that are learned by heart, a judge sees no failures, and groups of rollouts are all alike."""
    max_best_steps: Annotated[int, Matters("demos", "experts", "explore", "graded", "rl", "eval")] = Field(
        default=5, ge=1
    )
    """Only tasks whose shortest solution has at most this many steps (the closing `stop` included)."""


class Sft(Section):
    """Supervised fine-tuning of the policy on the demonstrations."""

    MATTERS_TO = ("sft",)

    steps: Annotated[int, NotKeyed("the stage holds its steps, which its longer controls set otherwise")] = Field(
        default=30, ge=0
    )
    """Optimizer steps."""
    batch: int = Field(default=32, ge=1)
    """Rows (one step of an episode each) of one optimizer step."""
    lr: float = Field(default=5e-4, gt=0)
    """Peak learning rate of AdamW; 3 warm-up steps, linear decay to 10 %."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of low-rank adapters that are trained instead of all weights, and merged at the end; 0 = all weights."""


class Explore(Section):
    """Real, unrewarded transitions, made by the SFT policy on real pages: to fit the world model on, to begin
    dreams with, and to recall in them."""

    MATTERS_TO = ("explore", "refresh")

    episodes: int = Field(default=200, ge=0)
    """Number of episodes."""
    steps: int = Field(default=6, ge=1)
    """Longest episode."""
    temperature: Temperature = 1.0
    """Sampling temperature of the policy."""
    random: float = Field(default=0.3, ge=0, le=1)
    """Share of actions replaced by a random valid action."""
    player: Literal["policy", "expert", "random"] = "policy"
    """Who plays: the SFT policy, the environment's scripted expert, or nobody: random valid actions only."""


class WmFit(Section):
    """Fitting of a trainable world model."""

    MATTERS_TO = ("wm-training",)
    FILES: ClassVar[frozenset[str]] = frozenset({"data"})

    steps: int = Field(default=60, ge=0)
    """Optimizer steps; 0 = use the base model as it is (frozen)."""
    batch: Annotated[int, Matters("wm-training", "refresh")] = Field(default=32, ge=1)
    """Transitions of one optimizer step."""
    lr: Annotated[float, Matters("wm-training", "refresh")] = Field(default=1e-3, gt=0)
    """Peak learning rate of AdamW; 3 warm-up steps, linear decay to 10 %."""
    holdout: Annotated[float, Matters("world-model")] = Field(default=0.1, ge=0, lt=1)
    """Share of the explored sites kept whole to measure fidelity, one at least; 0 = none."""
    open_loop: Annotated[int, Matters("drift")] = Field(default=32, ge=0)
    """Real episodes on held-out sites that a run repeats in dreams, at most, to see how errors add up over the steps;
    0 = none."""
    fidelity_steps: Annotated[int, Matters("world-model")] = Field(default=256, ge=0)
    """Real steps that fidelity is measured on, at most: so many of exploration on held-out sites, so many of
    demonstrations on sites that were not explored, and so many of demonstrations on fitted sites. Each is one reply of
    the world model. 0 = fidelity is not measured."""
    data: Annotated[str, Matters("world-model")] = ""
    """A transition store whose transitions are fitted too, beside those of exploration."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of low-rank adapters (LoRA, arXiv 2106.09685) that are trained instead of all weights, and merged at the
    end; 0 = all weights."""
    validate_every: int = Field(default=0, ge=0)
    """Updates between two looks at the loss on held-out sites; the best weights are kept. 0 = never."""
    patience: int = Field(default=3, ge=1)
    """Looks without a better loss after which fitting ends."""
    refresh_every: Annotated[int, Matters("refresh")] = Field(default=0, ge=0)
    """Dyna: after so many policy updates, real transitions are collected with the current policy and the world model
    is fitted further. 0 = never: the world model stays as it is."""
    refresh_episodes: Annotated[int, Matters("refresh")] = Field(default=32, ge=1)
    """Real episodes of one refresh."""
    refresh_steps: Annotated[int, Matters("refresh")] = Field(default=20, ge=1)
    """Optimizer steps of one refresh, on all transitions so far."""


class Dream(Section):
    """The dreams."""

    MATTERS_TO = ("rl",)

    horizon: Annotated[Annotated[int, Field(ge=1)] | Literal["auto"], Matters("rl", "graded")] = 6
    """Longest dream in steps (DynaWeb: 5). `auto`: a dream ends where its expected fidelity, by the world model's
    calibrated confidence, falls below `fidelity_floor`; the trajectory then gets no reward."""
    max_horizon: Annotated[int, Matters("rl", "graded")] = Field(default=8, ge=1)
    """Longest dream in steps with `horizon = "auto"`."""
    fidelity: Annotated[Literal["structure", "content"], Matters("rl", "calibration")] = "structure"
    """What an automatic horizon expects of a page of the right kind: `structure`, at least 0.9 of its elements by role
    (names on pages never seen cannot be known), or `content`, at least 0.8 of its elements with names and values."""
    fidelity_floor: float = Field(default=0.5, ge=0, le=1)
    """Expected fidelity at which an automatic horizon ends a dream."""
    temperature: Annotated[Temperature, Matters("rl", "drift", "calibration")] = 0.7
    """Sampling temperature of the world model."""
    invalid_ends: Annotated[bool, Matters("rl", "graded")] = True
    """An action that cannot be parsed or done ends the dream with reward 0."""
    lacking: Literal["zero", "ungraded"] = "zero"
    """Reward of a dream that ends on an invalid action which names something of the goal that the dreamed page lacks:
    0 like any invalid action, or none, since what an unknown page lists cannot be predicted."""
    rules: Annotated[Literal["all", "measured"], Matters("rl", "world-model", "drift", "lookahead")] = "all"
    """Which changes inside a page code decides, so that they are never dreamed. `all`: typing, ticking, choosing,
    hovering, clicks on text and fields, which are right where pages have no scripts. `measured`: only those that
    exploration does not contradict, by page, action and role; the world model is asked about a field whose click opens
    a calendar."""
    recall: bool = False
    """A step that exploration has taken, the same action on the same page, leads where it led in the real environment;
    the world model is asked about all others."""
    memory: Annotated[Literal["none", "pages", "deltas"], Matters("rl", "world-model", "drift")] = "none"
    """Dreams remember the site: `pages` that exploration and demonstrations have seen of it, found by the same action
    on the same page, by the address of a link, or by a text that was sent before, follow as they were where the memory,
    measured on itself, is right often enough; the world model imagines the others. `deltas`: of a remembered page that
    is not trusted, the world model writes what changed since, and is fitted so. Takes the place of `recall`."""
    one_world: bool = True
    """Rollouts of a group dream in the same world: the same action on the same page leads to the same next page, as on
    a real site, and is computed once. False: every rollout samples its own."""

    @property
    def longest(self) -> int:
        """Longest dream in steps."""
        return self.max_horizon if self.horizon == "auto" else self.horizon


class Rl(Section):
    """Policy optimization."""

    MATTERS_TO = ("rl",)

    updates: Annotated[int, Matters("rl", "experts", "curriculum")] = Field(default=40, ge=0)
    """Updates; each uses fresh rollouts."""
    tasks: Annotated[int, Matters("rl", "experts", "curriculum")] = Field(default=8, ge=1)
    """Tasks of one update."""
    n: int = Field(default=8, ge=2)
    """Rollouts of one task (DynaWeb: 8)."""
    sampling: Literal["rotation", "adaptive"] = "rotation"
    """Which task templates an update plays: all in turn, or more often those whose last groups were mixed, since a
    group whose rollouts all succeed or all fail carries no gradient."""
    lr: float = Field(default=2e-4, gt=0)
    """Peak learning rate of AdamW; linear decay to 10 % over the updates."""
    warmup: int = Field(default=3, ge=0)
    """Warm-up updates."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Global gradient norm is clipped to this."""
    temperature: float = Field(default=1.0, ge=COLDEST)
    """Sampling temperature of the policy."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of low-rank adapters that are trained instead of all weights, and merged at the end; 0 = all weights."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the rollouts of one update. With 1 here and in `minibatches` (the default) an update is one gradient
    step: the policy is still the one that played, so GSPO's ratio is exactly 1 and its clip window never acts. The
    update is then a plain policy gradient with group advantages, negative ones scaled by `negative_scale`."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps of one pass. GSPO's ratio and clip window act from an update's second optimizer step on, so
    never with 1 here and in `epochs`."""
    max_staleness: Annotated[int, Matters("run-ahead")] = Field(default=0, ge=0)
    """Asynchronous training: rollouts run ahead, and an update learns from rollouts that a policy of at most so many
    updates earlier has played. 0 = on-policy: every update plays with the weights of the update before it. More keeps
    an engine with weights of its own (vLLM on GPUs of its own, servers) busy while the trainer works; the engine in
    this process plays first and trains then, in the same order in every run."""
    stale_ratio: Annotated[Literal["sampler", "decoupled"], Matters("run-ahead")] = "sampler"
    """With `max_staleness`: what ratios are taken against. `sampler`: the log-probabilities that tokens were drawn
    with. `decoupled`: the policy before the update, as without staleness, while each token's gradient is weighed with
    its probability under that policy divided by the sampler's, up to `stale_cap` (arXiv 2110.00641, 2505.24298)."""
    stale_cap: Annotated[float, Matters("run-ahead")] = Field(default=2.0, gt=0)
    """With `max_staleness`: cap of these weights, which plain policy gradients without a ratio have in either case."""
    expert_share: float = Field(default=0.0, ge=0, le=1)
    """Probability that a rollout is replaced by an expert trajectory of the same task (DynaWeb: 0.5)."""
    bc_weight: float = Field(default=0.2, ge=0)
    """Weight of a behaviour-cloning term on the demonstrations that SFT saw."""
    bc_batch: int = Field(default=16, ge=0)
    """Demonstration rows in each update's behaviour-cloning term."""
    negative_scale: Annotated[float, Matters("policy-gradient")] = Field(default=0.25, ge=0)
    """Negative advantages are multiplied by this, whatever the optimizer; 1 = as in the papers."""
    expert_ratio: Literal["old-policy", "one", "sft"] = "old-policy"
    """What the ratio of expert tokens is taken against, which the policy did not sample: the policy before the update;
    nothing, so that it is 1 always; or the policy after SFT."""
    ref_kl_rows: Annotated[int, NotKeyed("measured only, nothing is learned from it")] = Field(default=0, ge=0)
    """Rows of each update on which the KL to the policy after SFT is measured, experts' left out. 0 = none: anything
    else keeps a second model in memory."""
    mode: Annotated[Literal["policy", "filtered-bc"], NotKeyed("says whether the stage does policy gradients")] = (
        "policy"
    )
    """`policy`: the chosen optimizer. `filtered-bc`: cross-entropy on successful dreams only (a control)."""
    checkpoint_every: Annotated[int, NotKeyed("when, not what")] = Field(default=5, ge=1)
    """Updates between checkpoints."""
    keep_checkpoints: Annotated[int, NotKeyed("how many, not what")] = Field(default=2, ge=1)
    """How many of the last checkpoints are kept until the updates are done, each with float32 weights and AdamW's
    moments (12 bytes a weight). With 2, a run goes on from the one before the last should that be damaged."""
    validate_every: Annotated[int, Matters("validation")] = Field(default=0, ge=0)
    """Updates between evaluations on validation tasks on real pages; 0 = never. The weights of the best one are
    kept beside the last ones (`checkpoints/dynaweb-best`)."""
    results_of: Annotated[Literal["last", "best"], Matters("validation")] = "last"
    """Which weights the results are of, and later phases start from: those after the last update, or those of the best
    validation (early stopping: a judge that is fooled late does no harm). `best` wants `validate_every`."""

    @model_validator(mode="after")
    def _validates(self) -> Rl:
        every, updates = self.validate_every, self.updates
        if self.results_of == "best" and updates and not 0 < every <= updates:
            raise ValueError(
                f'results_of = "best" takes the weights of the best validation, and validate_every = {every} validates '
                f'in none of {updates} updates; set it to {max(1, updates // 4)}, or results_of to "last"'
            )
        return self


class Offline(Section):
    """Learning from rollouts that were played once, before the updates, by the SFT policy in the real environment."""

    MATTERS_TO = ("graded",)

    episodes: Annotated[int, NotKeyed("the stage offline holds its number of episodes")] = Field(default=0, ge=0)
    """How many; every update draws its `rl.tasks` x `rl.n` from them. 0 = every update plays its own."""
    temperature: Annotated[Temperature, NotKeyed("the stage offline holds its temperature")] = 1.0
    """Sampling temperature of the policy that plays them."""


class Replay(Section):
    """Past successes that an update learns from again (WebRL, arXiv 2411.02337, section 2.2)."""

    MATTERS_TO = ("replay",)

    capacity: int = Field(default=0, ge=0)
    """Most steps that are remembered, the oldest go first; 0 = no replay."""
    ratio: float = Field(default=2.0, gt=0)
    """Remembered steps of one update for each of its own (released code: at most 2)."""
    perplexity: tuple[float, float] = (1 / 0.95, 1 / 0.5)
    """Only steps whose perplexity under the policy of the moment lies in this band: neither known by heart nor
    foreign."""

    @model_validator(mode="after")
    def _band(self) -> Replay:
        low, high = self.perplexity
        if not 1 <= low < high:
            raise ValueError(f"perplexity must be a band with 1 <= low < high, not [{low}, {high}]")
        return self


class Phases(Section):
    """Reinforcement learning in phases, each on tasks made of what the phase before has failed (WebRL, section 2.1).

    Every phase starts from the policy of the one before, and its reference is the policy that it starts from; critic
    and replay buffer are handed on.
    """

    MATTERS_TO = ("curriculum",)

    count: Annotated[int, NotKeyed("how many phases follow changes none of them")] = Field(default=1, ge=1)
    """Phases, of `rl.updates` updates each."""
    generator: Literal["auto", "environment", "server"] = "auto"
    """Who makes new tasks of failed ones: the environment, where it can make checked variants, or a language model
    behind `server`. `auto`: the environment if it can, else the server."""
    tasks: int = Field(default=0, ge=0)
    """Tasks of a phase after the first; 0 = `rl.updates` x `rl.tasks`."""
    proposals: int = Field(default=4, ge=1)
    """Proposals for each task that is wanted, before they are filtered."""
    value: tuple[float, float] = (0.05, 0.75)
    """A new task is kept when the critic's chance of success on its first page lies in this band."""
    server: Server = Field(default_factory=Server)
    """The model that makes tasks, and says whether they can be done on the site."""

    @model_validator(mode="after")
    def _band(self) -> Phases:
        low, high = self.value
        if not 0 <= low < high <= 1:
            raise ValueError(f"value must be a band with 0 <= low < high <= 1, not [{low}, {high}]")
        return self


class JudgeFit(Section):
    """Fitting of a trainable judge (`--reward orm`) on real episodes that the environment has graded."""

    MATTERS_TO = ("judge-fit", "judge-refresh")
    FILES: ClassVar[frozenset[str]] = frozenset({"data"})

    episodes: Annotated[int, NotKeyed("the stage graded holds its number of episodes")] = Field(default=240, ge=1)
    """Real episodes of the SFT policy on training tasks, each with the environment's verdict."""
    temperature: Annotated[Temperature, NotKeyed("the stage graded holds its temperature")] = 1.0
    """Sampling temperature of the policy that plays them."""
    steps: Annotated[int, Matters("judge-fit")] = Field(default=30, ge=0)
    """Optimizer steps; 0 = the base model as it is, calibrated only."""
    batch: int = Field(default=32, ge=1)
    """Episodes of one optimizer step."""
    lr: float = Field(default=1e-4, gt=0)
    """Peak learning rate of AdamW; 3 warm-up steps, linear decay to 10 %."""
    holdout: float = Field(default=0.5, gt=0, lt=1)
    """Share of the sites that are not fitted on: half of their episodes calibrate, the other sites measure."""
    prefixes: bool = False
    """Also learn from the pages on the way, each with the verdict on the whole episode: a value function rather than a
    judge of finished episodes (WMA's, arXiv 2410.13232)."""
    contrast: bool = False
    """Also learn from failures made of each success, without a real episode: the success under the goal of another task
    of its template (names and numbers must be the goal's), and the success that stops too early."""
    data: str = ""
    """A trajectory store of graded real episodes that are fitted on too."""
    refresh_every: Annotated[int, Matters("judge-refresh")] = Field(default=0, ge=0)
    """Updates of reinforcement learning between two refreshes: the current policy plays real episodes, the environment
    grades them, and the judge is fitted further on all that were graded so far. 0 = never."""
    refresh_episodes: Annotated[int, Matters("judge-refresh")] = Field(default=64, ge=1)
    """Real episodes of one refresh."""
    refresh_steps: Annotated[int, Matters("judge-refresh")] = Field(default=10, ge=1)
    """Optimizer steps of one refresh."""


class Audit(Section):
    """Checking the judge while the policy learns from it: dreams are repeated on real pages, where a verdict exists."""

    MATTERS_TO = ("audit",)

    every: int = Field(default=0, ge=0)
    """Updates between two audits; 0 = never."""
    episodes: int = Field(default=32, ge=1)
    """Rollouts of the last update that an audit repeats, at most."""
    confidence: float = Field(default=0.8, gt=0, lt=1)
    """Confidence of the interval by which success must have fallen before an alarm speaks of a fall."""
    margin: float = Field(default=0.02, ge=0, le=1)
    """How much the judge's reward must have risen at least."""
    false_positive: float = Field(default=0.5, gt=0, le=1)
    """An alarm also sounds when the judge surely (95 %) accepts more than this share of real failures."""
    stop: Annotated[bool, NotKeyed("whether an alarm ends the run, not what is learned")] = False
    """An alarm ends the run with an error; the weights of that moment are kept as a checkpoint."""


class Agent(Section):
    """How a policy acts at evaluation: by itself, or after looking ahead in a world model."""

    MATTERS_TO = ("lookahead",)

    kind: Literal["direct", "lookahead"] = "direct"
    """`lookahead`: propose several actions, imagine where each leads, let the judge value it, and do the best one
    (WebDreamer, arXiv 2411.06559)."""
    candidates: int = Field(default=4, ge=1)
    """Replies that are sampled for one decision; equal actions count once."""
    temperature: float = Field(default=1.0, ge=COLDEST)
    """Sampling temperature of the candidates."""
    depth: int = Field(default=2, ge=1)
    """Steps that are imagined for each candidate, its own included; the policy itself goes on after the first."""
    samples: int = Field(default=1, ge=1)
    """Imagined futures of one candidate, whose values are averaged."""
    world_temperature: Temperature = 0.7
    """Sampling temperature of the world model."""


class Eval(Section):
    """Evaluation on held-out tasks."""

    MATTERS_TO = ("eval", "validation")

    episodes: Annotated[int, NotKeyed("the stage holds its number of episodes")] = Field(default=108, ge=1)
    """Held-out episodes; every arm plays the same ones (paired)."""
    steps: int = Field(default=8, ge=1)
    """Longest episode."""
    browser_share: Annotated[float, NotKeyed("the stage of the sample holds its number")] = Field(
        default=0.0, ge=0, le=1
    )
    """Share of the main arm's episodes, rounded down, that are played again in Chromium where the evaluation is without
    a browser (`driver = "static"`): the report says in how many outcome and actions are the same."""
    split: Annotated[Literal["validation", "test"], NotKeyed("the stage holds its split")] = "test"
    """Which sites: their names are disjoint from all others."""
    env: str = ""
    """Environment plugin of the evaluation; empty = the task environment."""
    env_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of that plugin, such as `env_settings.path = "tasks.json"`; without effect when `env` is empty."""


class Controls(Section):
    """Arms that are trained and evaluated beside the main one, at equal expert data."""

    MATTERS_TO = ("validation",)

    sft_steps: Annotated[
        Annotated[tuple[int, ...], AfterValidator(_counts)], NotKeyed("each is a stage that holds its steps")
    ] = (120,)
    """SFT trained longer; of several step counts, the best on the validation sites is evaluated on the test sites.
    `--thorough` tries 60 and 120."""
    sft_validation: int = Field(default=48, ge=1)
    """Validation episodes for that choice."""
    filtered_bc: Annotated[bool, NotKeyed("adds a stage, and changes none")] = False
    """Filtered behaviour cloning in the same dreams."""
