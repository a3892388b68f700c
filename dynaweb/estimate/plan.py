"""The estimate of a recipe on the machine at hand, and the refusal of what cannot fit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dynaweb import train
from dynaweb.errors import ConfigError, DynawebError
from dynaweb.estimate import memory as mem
from dynaweb.estimate.machine import GIB, Machine
from dynaweb.estimate.memory import Setup
from dynaweb.estimate.pictures import image_tokens
from dynaweb.estimate.placement import Part, generating_gpus, judge_has_model, placement, placement_text
from dynaweb.estimate.shapes import Shape, shape_of
from dynaweb.estimate.work import STAGES, Work, work_of
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.runs import StageCache
from dynaweb.stages.arms import n_arms

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.config.sections import EngineChoice

ROOM = 0.95
"""Share of a device's memory that a run may take: drivers and the allocator have some too."""
BUSY = 0.3
"""Share of the speed of matrix products that reading and training reach, roughly."""
DECODING = {True: 0.2, False: 0.03}
"""The same of writing token after token, on a CPU, whose caches hold small models, and on a GPU."""
READING = 0.5
"""Share of the bandwidth of a GPU's memory that writing token after token reaches, roughly: each step reads all
weights once for all episodes that are open."""


LESS = (
    "More processes with backend.name=deepspeed and backend.stage=3, backend.offload, model.checkpointing, a smaller "
    "model.micro_tokens, rl.lora_rank or a smaller model take less"
)
"""What to do about a recipe that does not fit, where nobody looked for what would make it fit."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by stage and part, work by stage, and seconds of model work (None where the machine's speed is unknown)."""

    model: str
    parameters: int
    ranks: int
    machine: Machine
    memory: dict[str, dict[str, int]]
    work: dict[str, Work]
    seconds: float | None
    unknown: tuple[str, ...] = ()
    """Stages of the run that are in none of these numbers."""
    image_tokens: int | None = None
    """Tokens of one picture of a page; 0 where the policy is shown none, None where nothing here says how many."""
    layout: tuple[Part, ...] = ()
    """Where each part of the run is; empty where something else places them."""
    generating: int = 0
    """GPUs of the machine that only generate (`replicas` of vLLM)."""
    remedies: tuple[str, ...] = ()
    """What would make a recipe fit that does not, each tried out (`dynaweb.estimate.remedies`)."""

    @property
    def peak(self) -> tuple[str, int]:
        """The stage that takes most memory of a rank's device, and how much."""
        totals = {stage: sum(n for part, n in parts.items() if part != "host") for stage, parts in self.memory.items()}
        stage = max(totals, key=lambda name: totals[name])
        return stage, totals[stage]

    @property
    def host(self) -> int:
        """Bytes of the host's memory that ranks take for what does not stay on their devices."""
        return self.ranks * max(parts.get("host", 0) for parts in self.memory.values())

    def problems(self) -> list[str]:
        """Why this cannot run here; none when it can."""
        machine, (stage, need) = self.machine, self.peak
        reasons = []
        if not machine.is_cpu and self.ranks + self.generating > machine.devices:
            replicas = f" and replicas of vLLM {self.generating} more" if self.generating else ""
            reasons.append(f"{self.ranks} processes want a GPU each{replicas}, and there are {machine.devices}")
        have = round(ROOM * machine.memory / (self.ranks if machine.is_cpu else 1))
        if need > have:
            parts = ", ".join(
                f"{part} {_gib(size)}"
                for part, size in self.memory[stage].items()
                if part != "host" and size >= GIB / 10
            )
            reasons.append(f"stage {stage} needs {_gib(need)} a process ({parts}), and {_gib(have)} can be had")
        if self.host > ROOM * machine.host_memory:
            reasons.append(f"{_gib(self.host)} of host memory are needed, and there are {_gib(machine.host_memory)}")
        return reasons

    def check(self) -> None:
        """Raise `ConfigError` when this cannot run here."""
        problems = self.problems()
        if problems:
            way_out = f"It would fit with: {'; or '.join(self.remedies)}" if self.remedies else LESS
            raise ConfigError(f"this recipe does not fit {self.machine.words}: {'; '.join(problems)}. {way_out}")

    def plain(self) -> dict[str, Any]:
        """Plain data, with the sums."""
        stage, need = self.peak
        return {**asdict(self), "peak": {"stage": stage, "bytes": need}, "host_bytes": self.host}

    def __str__(self) -> str:
        stage, need = self.peak
        work = list(self.work.values())
        tokens = [sum(getattr(one, name) for one in work) for name in ("read", "written", "trained")]
        time = "not known" if self.seconds is None else _words(self.seconds)
        return "\n".join(
            [
                "Estimate, every episode as long as it may be:",
                f"  machine: {self.machine.words}",
                f"  model: {self.model}, {self.parameters / 1e6:,.1f} million weights, {self.ranks} process(es)",
                *(f"  memory of a process, {name}: {_parts(parts)}" for name, parts in self.memory.items()),
                f"  most memory of a process: {_gib(need)} (stage {stage})",
                "  tokens: at most {:,} read, {:,} written, {:,} trained on".format(*tokens),
                *self._images,
                f"  time of model work, roughly, at most: {time} (browsers and servers come on top)",
                *([f"  not in these numbers: {', '.join(self.unknown)}"] if self.unknown else []),
                *(["", "Layout:"] if self.layout else []),
                *(f"  {line}" for line in (placement_text(self.layout).splitlines() if self.layout else ())),
            ]
        )

    @property
    def _images(self) -> list[str]:
        if self.image_tokens is None:
            return ["  tokens of a picture: not known, and in none of these numbers"]
        return (
            [f"  tokens of a picture: {self.image_tokens:,} of each prompt on a real page"] if self.image_tokens else []
        )


def estimate(recipe: Recipe, machine: Machine, *, ranks: int = 1) -> Estimate | None:
    """What a recipe takes; None when nothing here says how large its model is."""
    shape = shape_of(recipe.model.path)
    if shape is None:
        return None
    served, (stages, arms) = _served(recipe.wm.config), _run_of(recipe)
    images = image_tokens(recipe)
    work = work_of(recipe, shape, stages, arms=arms, served_world_model=served, image_tokens=images or 0)
    return Estimate(
        model=recipe.model.path,
        parameters=shape.parameters,
        ranks=ranks,
        machine=machine,
        memory=_memory(recipe, shape, machine, ranks, served, stages),
        work=work,
        seconds=_seconds(recipe, work, machine, ranks),
        unknown=tuple(name.replace("_", "-") for name in stages if name not in STAGES),
        image_tokens=images,
        layout=placement(recipe, machine, ranks),
        generating=0 if machine.is_cpu else generating_gpus(recipe),
    )


def _run_of(recipe: Recipe) -> tuple[list[str], int]:
    """The stages of the recipe's run, and how many policies it evaluates."""
    ctx = RunContext(recipe, current(), StageCache())
    try:
        return [spec.name for spec in train.stages_of(ctx)], n_arms(ctx)
    except DynawebError:  # of a plugin or its settings, which other checks name
        return [spec.name for spec in train.STAGES], 2


def _seconds(recipe: Recipe, work: dict[str, Work], machine: Machine, ranks: int) -> float | None:
    if not machine.flops:
        return None
    devices = 1 if machine.is_cpu else min(ranks, machine.devices)
    decoding = DECODING[machine.is_cpu] * machine.flops
    if machine.bandwidth:
        # Two operations a weight for each open episode, while one weight is read.
        weights_a_second = READING * machine.bandwidth / _bytes_each(recipe)
        decoding = min(BUSY * machine.flops, 2 * recipe.web.contexts * weights_a_second)
    return sum(one.operations / (BUSY * machine.flops) + one.decoding / decoding for one in work.values()) / devices


def _bytes_each(recipe: Recipe) -> int:
    """Bytes of one weight."""
    return 4 if recipe.model.dtype == "float32" else 2


def _served(config: Any) -> bool:
    """Whether a plugin's model answers from a server."""
    server = getattr(config, "server", None)
    return bool(server is not None and server.model)


def _memory(
    recipe: Recipe, shape: Shape, machine: Machine, ranks: int, served: bool, stages: Collection[str]
) -> dict[str, dict[str, int]]:
    setup = partial(
        Setup,
        _bytes_each(recipe),
        stage=recipe.backend.stage if recipe.backend.name != "torch" else 0,
        fsdp=recipe.backend.name == "fsdp",
        ranks=ranks,
        offload=recipe.backend.offload,
        micro_tokens=recipe.model.micro_tokens,
        checkpointing=recipe.model.checkpointing,
        vision=recipe.observation.train_vision,
    )
    memory = {}
    if recipe.sft.steps:
        memory["sft"] = _trained(shape, setup(recipe.sft.lora_rank))
    if "world_model" in stages and recipe.wm_fit.steps and not served:
        memory["world-model"] = _trained(shape, setup(recipe.wm_fit.lora_rank))
    if "rl" in stages:
        rl = setup(recipe.rl.lora_rank)
        memory["rl"] = {**_trained(shape, rl), **_partners(recipe, shape, rl, machine, served)}
    memory["eval"] = {"weights": mem.frozen(shape, setup(0)), **_caches(recipe, shape, setup(0), machine, ("policy",))}
    return memory


def _trained(shape: Shape, setup: Setup) -> dict[str, int]:
    return {**mem.training(shape, setup), "activations": mem.activations(shape, setup)}


def _partners(recipe: Recipe, shape: Shape, setup: Setup, machine: Machine, served: bool) -> dict[str, int]:
    """What a process holds besides, while the policy is trained."""
    parts, roles = {}, ["policy"]
    own = mem.frozen(shape, setup)
    if recipe.env.name == "dream" and not served:
        parts["world model"] = own
        roles.append("wm")
    if judge_has_model(recipe):
        parts["judge"] = own
        roles.append("reward")
    engine = recipe.engine_of("policy")
    awake = engine.settings.get("replicas") or engine.settings.get("servers") or engine.settings.get("sleep") is False
    if recipe.rl.max_staleness and engine.name == "vllm" and (awake or machine.is_cpu):
        parts["weights of rollouts"] = own
    if recipe.rl.ref_kl_rows or getattr(recipe.opt.config, "beta", 0):
        parts["reference"] = own
    if hasattr(recipe.opt.config, "critic_lr"):
        # A critic is whole on every rank, whatever the backend of the policy.
        parts["critic"] = sum(mem.training(shape, Setup(setup.bytes_each)).values())
    return {**parts, **_caches(recipe, shape, setup, machine, tuple(roles))}


def _caches(recipe: Recipe, shape: Shape, setup: Setup, machine: Machine, roles: tuple[str, ...]) -> dict[str, int]:
    """Keys and values of the roles' engines; what vLLM reserves beside rank 0."""
    caches = {}
    for choice in {str(recipe.engine_of(role)): recipe.engine_of(role) for role in roles}.values():
        if choice.name == "transformers":
            tokens = int(choice.settings.get("max_batch_tokens", 65_536))
            caches["key-value cache"] = mem.cache(shape, tokens, setup.bytes_each)
        elif choice.name == "vllm" and not _apart(recipe, choice):
            caches["vLLM"] = round(float(choice.settings.get("memory") or 0.4) * machine.memory)
    return caches


def _apart(recipe: Recipe, choice: EngineChoice) -> bool:
    """Whether a vLLM takes nothing of the trainers' devices."""
    served = bool(recipe.cluster.address and recipe.cluster.servers)
    return served or bool(choice.settings.get("replicas") or choice.settings.get("servers"))


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"


def _parts(parts: dict[str, int]) -> str:
    return ", ".join(f"{part} {_gib(size)}" for part, size in parts.items() if size)


def _words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
