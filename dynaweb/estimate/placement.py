"""Where the parts of a run are: on the trainers' GPUs, on GPUs of their own, or behind addresses.

Three layouts, and mixtures of them (docs/scale.md):

colocated  one GPU trains and generates: the engine in this process, or a vLLM that sleeps while the trainer works
split      the first GPUs train, the last ones generate (`replicas` of vLLM)
elsewhere  models answer from addresses (`servers` of vLLM, `wm.server`, `reward.server`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynaweb.errors import DynawebError
from dynaweb.estimate.machine import Machine
from dynaweb.judges.parts import has_engine
from dynaweb.masking import masked
from dynaweb.plugin.registry import current
from dynaweb.stats import text_table

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.config.sections import EngineChoice

HEAD = ("part", "where", "how")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run: what it is, where it runs, and how it takes turns with the others."""

    name: str
    where: str
    how: str


def generating_gpus(recipe: Recipe) -> int:
    """GPUs of this machine that only generate: those of the replicas of vLLM, which roles share."""
    return max((_replicas(choice) * _each(choice) for choice in _engines(recipe).values()), default=0)


def judge_has_model(recipe: Recipe) -> bool:
    """Whether the judge, or one that it is made of, asks a model that is not the policy."""
    try:
        return has_engine(recipe, current())
    except DynawebError:  # of a plugin or its settings, which other checks name
        return False


def placement(recipe: Recipe, machine: Machine, ranks: int) -> tuple[Part, ...]:
    """The parts of a recipe's run on a machine with so many trainer processes; GPUs that idle are a part too."""
    here = "this machine's CPU" if machine.is_cpu else _gpus(0, min(ranks, machine.devices))
    name = recipe.backend.name
    kind = f"{name}, stage {recipe.backend.stage}" if name == "deepspeed" else name
    parts = [Part("trainer", here, f"{kind}, {ranks} process{'' if ranks == 1 else 'es'}")]
    parts += [_role(recipe, role, title, machine, ranks) for role, title in _roles(recipe)]
    parts += [Part("browsers", *_browsers(recipe))]
    used = min(ranks, machine.devices) + generating_gpus(recipe)
    if not machine.is_cpu and used < machine.devices:
        first, last = min(ranks, machine.devices), machine.devices - generating_gpus(recipe)
        parts.append(Part("nothing", _gpus(first, last), "idle: raise --nproc, or replicas"))
    return tuple(parts)


def placement_text(parts: tuple[Part, ...]) -> str:
    """The parts as a table."""
    rows = [HEAD, *((part.name, part.where, part.how) for part in parts)]
    wide = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    # `text_table` sets numbers on the right of their columns, and these are words.
    head, *others = [[text.ljust(width) for text, width in zip(row, wide, strict=True)] for row in rows]
    return text_table(head, others, width=sum(wide) + 8)


def _roles(recipe: Recipe) -> list[tuple[str, str]]:
    roles = [("policy", "policy")]
    if recipe.env.name == "dream":
        roles.append(("wm", "world model"))
    return [*roles, ("reward", "judge")]


def _role(recipe: Recipe, role: str, title: str, machine: Machine, ranks: int) -> Part:
    config: Any = recipe.policy if role == "policy" else getattr(recipe, role).config
    server = getattr(config, "server", None)
    if role != "policy" and server is not None and server.model:
        return Part(title, masked(server.base_url) or "OpenAI's API", f"{server.model} behind a server")
    model = getattr(config, "model", None)
    if parts := getattr(config, "judges", None):
        return Part(title, "as its judges", f"{recipe.reward.name}: {', '.join(parts)}")
    if role == "reward" and not (judge_has_model(recipe) or isinstance(model, str)):
        return Part(title, "this process", f"{recipe.reward.name}, without a model of its own")
    if role == "reward" and model == "policy":
        role, title = "policy", "judge (the policy)"
    return Part(title, *_engine(recipe.engine_of(role), machine, ranks))


def _engine(choice: EngineChoice, machine: Machine, ranks: int) -> tuple[str, str]:
    if servers := choice.settings.get("servers"):
        return masked(", ".join(servers)), f"{choice.name} that runs there already, never asleep"
    if number := _replicas(choice):
        count = "a replica" if number == 1 else f"{number} replicas"
        spread = f" of {_each(choice)} GPUs" if _each(choice) > 1 else ""
        where = _gpus(machine.devices - number * _each(choice), machine.devices)
        return where, f"{count} of {choice.name}{spread}, weights by NCCL, never asleep"
    if choice.name == "transformers":
        where = "this machine's CPU" if machine.is_cpu else _gpus(0, min(ranks, machine.devices))
        return where, "the trainer's own weights, in turn with it"
    if machine.is_cpu:
        return "this machine's CPU", f"{choice.name} in a process beside the trainer"
    turns = "never asleep" if choice.settings.get("sleep") is False else "asleep while the trainer works"
    return "GPU 0", f"{choice.name} in a process beside rank 0, {turns}"


def _browsers(recipe: Recipe) -> tuple[str, str]:
    where = masked(", ".join(recipe.web.endpoint)) or "this machine's CPU"
    return where, f"at most {recipe.web.contexts} pages at once, where a browser plays"


def _engines(recipe: Recipe) -> dict[str, EngineChoice]:
    choices = [recipe.engine_of(role) for role, _ in _roles(recipe)]
    return {str(choice): choice for choice in choices if not choice.settings.get("servers")}


def _replicas(choice: EngineChoice) -> int:
    return int(choice.settings.get("replicas") or 0)


def _each(choice: EngineChoice) -> int:
    return int(choice.settings.get("tensor_parallel") or 1)


def _gpus(first: int, after: int) -> str:
    """GPUs from `first` to the one before `after`."""
    return f"GPU {first}" if after - first == 1 else f"GPUs {first}-{after - 1}"
