"""Jobs of real ranks, for test_backend_team; imported anew in each process."""

from __future__ import annotations

import os
import random
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import engine_kit as kit
import rank_kit
import torch

from dynaweb.config.sections import Backend
from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.scheduler import Lockstep
from dynaweb.errors import TrainingError
from dynaweb.pipeline.fit import EarlyStop
from dynaweb.protocols import GenerateRequest
from dynaweb.trainer.choice import make_trainer
from dynaweb.trainer.distributed.team import Team, wants_team
from dynaweb.trainer.distributed.team_engine import TeamEngine
from dynaweb.types import Prompt

TORCH = Backend()


def model_of(seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """A model that every rank can make."""
    return kit.llama(seed).to(dtype)


class Counter:
    """Counts on every rank, and fails when told to."""

    def __init__(self, team: Team) -> None:
        self.team, self.value = team, 0

    def add(self, number: int) -> list[int]:
        """What all ranks have counted."""
        self.value += number * (1 + self.team.ranks.rank)
        return self.team.gather(self.value)

    def fail(self, rank: int | None) -> str:
        """Raise on one rank, or on all of them."""
        if rank is None or rank == self.team.ranks.rank:
            raise TrainingError("too large" if rank is None else f"only rank {rank}")
        return "fine"


@wants_team
def counter(team: Team) -> Counter:
    """For `Team.make`."""
    return Counter(team)


def requests() -> list[GenerateRequest]:
    """Rollouts of three tasks, with one that is asked for twice."""
    rng = random.Random(3)
    prompts = [kit.prompt(rng, 10, 40) for _ in range(3)]
    found = [GenerateRequest(prompts[i % 3], 6, seed=i, stop_ids=(1,)) for i in range(10)]
    return [*found, found[0]]


def engine_of(team: Team | None, model: Any) -> Any:
    """The engine of one process, or of all."""
    engine = TransformersEngine(model, Lockstep())
    return engine if team is None else TeamEngine(team, engine, 0)


def trained(
    team: Team | None,
    backend: Backend = TORCH,
    *,
    optimizer: str = "gspo",
    dtype: torch.dtype = torch.float32,
    updates: int = 3,
) -> dict[str, Any]:
    """Updates by the trainer that a recipe asks for."""
    chosen = rank_kit.optimizers()[optimizer]
    model, judge = (
        model_of(seed, dtype) if team is None else team.make("team_kit:model_of", seed, dtype) for seed in (0, 3)
    )
    critic = None if chosen.wants.critic is None else (judge, chosen.wants.critic)
    trainer = make_trainer(model, backend, team, lr=2e-3, total_steps=10, micro_tokens=40, critic=critic)
    metrics = rank_kit.train(trainer, chosen, updates)
    return {"metrics": metrics, "tensors": trainer.state_dict()["tensors"], "steps": trainer.steps}


def adapted(team: Team | None, backend: Backend = TORCH) -> dict[str, Any]:
    """The same with adapters, which rank 0 alone puts into its model; and what engines made before and after say."""
    from dynaweb.pipeline.artifacts import LoadedModel
    from dynaweb.pipeline.fit import with_adapters

    model = kit.llama() if team is None else team.make("team_kit:model_of", 0)
    early = engine_of(team, model)
    with_adapters(LoadedModel(model, None, None), 4, seed=1)  # type: ignore[arg-type]
    fill_adapters(model)
    late = engine_of(team, model)
    first = late.generate_batch(requests())
    trainer = make_trainer(model, backend, team, lr=2e-3, total_steps=10, micro_tokens=40)
    metrics = rank_kit.train(trainer, rank_kit.optimizers()["gspo"], 2)
    said = [first, early.generate_batch(requests()), late.generate_batch(requests())]
    return {"metrics": metrics, "tensors": trainer.state_dict()["tensors"], "steps": trainer.steps, "said": said}


def fill_adapters(model: Any) -> None:
    """Second factors that are not 0, so that adapters that are missing show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


def stopped_early(team: Team | None) -> dict[str, Any]:
    """What an engine says when the weights after the first of two updates have been put back."""
    model = kit.llama() if team is None else team.make("team_kit:model_of", 0)
    engine, rows = engine_of(team, model), kit.rows_of(1)
    trainer = make_trainer(model, Backend(), team, lr=2e-3, total_steps=10, micro_tokens=40)
    with tempfile.TemporaryDirectory() as folder:
        watch = EarlyStop(rows, every=1, patience=1, folder=Path(folder))
        trainer.supervised_step(rows)
        watch.look(trainer)
        trainer.supervised_step(rows)
        watch.put_back_best(trainer)
    return {"said": [engine.generate_batch(requests())]}


def phases(team: Team | None) -> dict[str, Any]:
    """Two phases of an optimizer with a critic: the second has a new policy and goes on with the first one's critic."""
    optimizer = rank_kit.optimizers()["webrl"]

    def trainer_of(seed: int) -> Any:
        policy, judge = (kit.llama(s) if team is None else team.make("team_kit:model_of", s) for s in (seed, 3))
        named = {"lr": 2e-3, "total_steps": 10, "micro_tokens": 40}
        return make_trainer(policy, Backend(), team, critic=(judge, optimizer.wants.critic), **named)

    first, second = trainer_of(0), trainer_of(1)
    metrics = rank_kit.train(first, optimizer, 2)
    with tempfile.TemporaryDirectory() as folder:
        first.critic.save(Path(folder), first.steps)
        second.load_critic(Path(folder))
    metrics += rank_kit.train(second, optimizer, 2)
    return {"metrics": metrics, "tensors": second.state_dict()["tensors"], "steps": second.steps}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_zero(team: Team, folder: Path) -> None:
    """Everything that rank 0 tries, as one file."""
    counted = team.make("team_kit:counter")
    found: dict[str, Any] = {"counted": [team.call(counted, "add", number) for number in (1, 2)]}
    model = team.make("team_kit:model_of", 1)
    engine = engine_of(team, model)
    found["completions"] = engine.generate_batch(requests())
    found["choices"] = engine.choice_batch(
        [(Prompt((1, 2, 3)), (4, 5)), (Prompt((1, 2)), (4,)), (Prompt((1, 2, 3)), (4, 5))]
    )
    found["trained"], found["adapted"], found["stopped_early"] = trained(team), adapted(team), stopped_early(team)
    found["phases"] = phases(team)
    for name, rank in (("all", None), ("one", 1)):
        try:
            team.call(counted, "fail", rank)
        except TrainingError as error:
            found[name] = str(error)
    found["after"] = team.call(counted, "add", 0)
    with ThreadPoolExecutor(2) as threads:
        orders = [threads.submit(team.call, counted, "add", 1) for _ in range(20)]
        orders += [threads.submit(team.make, "team_kit:model_of", seed) for seed in range(3)]
        found["threads"] = sorted(order.result() for order in orders[:20])
    torch.save(found, folder / "found.pt")
    team.close()


def resumed(team: Team | None, backend: Backend, folder: Path) -> dict[str, Any]:
    """An update after those that somebody left in a folder, and a checkpoint of it all in another one."""
    model = kit.gpt2() if team is None else team.make("team_kit:other_model")
    trainer = make_trainer(model, backend, team, lr=2e-3, total_steps=10, micro_tokens=1000)
    if (folder / "before").is_dir():
        trainer.load(folder / "before")
    # One micro-batch alone, of which another rank has no part.
    metrics = [trainer.supervised_step(kit.rows_of(1)) for _ in range(2)]
    trainer.save(folder / "after")
    said = engine_of(team, model).generate_batch(requests())
    logps = trainer.logprobs(kit.rows_of(4))
    return {"metrics": metrics, "tensors": trainer.state_dict()["tensors"], "said": [said], "logps": logps}


def other_model() -> Any:
    """A model of another kind, with dropout and tied weights."""
    return kit.gpt2().train()


def fsdp(stage: int) -> Backend:
    """FSDP2 at a stage."""
    return Backend(name="fsdp", stage=stage)  # type: ignore[arg-type]


def fsdp_zero(team: Team, folder: Path) -> None:
    """What rank 0 tries with FSDP2."""
    found: dict[str, Any] = {
        "trained": trained(team, fsdp(1)),
        "criticised": trained(team, fsdp(3), optimizer="ppo", updates=2),
        "adapted": adapted(team, fsdp(1)),
        "resumed": resumed(team, fsdp(2), folder),
        **{f"half-{stage}": trained(team, fsdp(stage), dtype=torch.bfloat16, updates=1) for stage in (1, 3)},
    }
    torch.save(found, folder / "found.pt")
    team.close()


def rank(number: int, size: int, folder: str, port: int, job: str = "rank_zero") -> None:
    """One process, which does the job where it is rank 0; the others exit with what `Team.serve` returns."""
    _join_as(number, size, port)
    team = Team.join()
    if number == 0:
        globals()[job](team, Path(folder))
    else:
        raise SystemExit(team.serve())


def _join_as(number: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    names = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", **{k: str(v) for k, v in names.items()}})


def run_of_ranks(number: int, size: int, port: int, folder: str, sets: tuple[str, ...], more: dict[str, Any]) -> None:
    """A whole run on several ranks, with vLLM behind addresses."""
    import dynaweb

    _join_as(number, size, port)
    if number > 0:
        raise SystemExit(Team.join().serve())
    os.environ["DYNAWEB_CACHE"] = f"{folder}/cache"
    dynaweb.run("dynaweb", overrides=list(sets), out=Path(folder) / "run", **more)
