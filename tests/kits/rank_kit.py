"""An update in one of several real processes, for test_opt_ranks; imported anew in each of them."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_kit as kit
import torch
import torch.distributed as dist

from dynaweb.protocols import CreditInput, CreditRow
from dynaweb.trainer.advantages import compute_advantages
from dynaweb.trainer.ranks import Ranks
from dynaweb.trainer.torch_trainer import TorchTrainer
from dynaweb_opt_cispo import CispoConfig
from dynaweb_opt_cispo.cispo import Cispo
from dynaweb_opt_gigpo import GigpoConfig
from dynaweb_opt_gigpo.gigpo import Gigpo
from dynaweb_opt_grpo import GrpoConfig
from dynaweb_opt_grpo.grpo import Grpo
from dynaweb_opt_gspo import GspoConfig
from dynaweb_opt_gspo.gspo import Gspo
from dynaweb_opt_ppo import PpoConfig
from dynaweb_opt_ppo.ppo import Ppo
from dynaweb_opt_reinforce_pp import ReinforcePpConfig
from dynaweb_opt_reinforce_pp.reinforce_pp import ReinforcePp
from dynaweb_opt_rloo import RlooConfig
from dynaweb_opt_rloo.rloo import Rloo
from dynaweb_opt_webrl import WebrlConfig
from dynaweb_opt_webrl.webrl import Webrl

REWARDS = (1.0, 0.0, 0.5, None, 0.0)


def optimizers() -> dict[str, Any]:
    """One of each kind."""
    return {
        "gspo": Gspo(GspoConfig(clip_low=0.05, clip_high=0.08)),
        "gspo-token": Gspo(GspoConfig(level="token", clip_low=0.05, clip_high=0.08, beta=0.1)),
        "grpo": Grpo(GrpoConfig(beta=0.05)),
        "ppo": Ppo(PpoConfig()),
        "rloo": Rloo(RlooConfig(surrogate="clip", level="trajectory")),
        "reinforce-pp": ReinforcePp(ReinforcePpConfig(gamma=0.9)),
        "cispo": Cispo(CispoConfig()),
        "gigpo": Gigpo(GigpoConfig()),
        "webrl": Webrl(WebrlConfig()),
    }


def trainer_of(optimizer: Any, ranks: Ranks | None = None, **changes: Any) -> TorchTrainer:
    """A trainer of a small random model, with the critic that the optimizer wants."""
    spec = optimizer.wants.critic
    critic = None if spec is None else (kit.llama(3), spec)
    given: dict[str, Any] = {"lr": 2e-3, "total_steps": 10, "micro_tokens": 40, "critic": critic, "ranks": ranks}
    return TorchTrainer(kit.llama(), **(given | changes))


def train(trainer: TorchTrainer, optimizer: Any, updates: int = 2) -> list[dict[str, float]]:
    """Some updates on the same rollouts, with old and reference log-probabilities of slightly different policies."""
    rows = kit.rows_of(2, trajectories=len(REWARDS))
    rng = random.Random(0)
    near = [[[v + rng.gauss(0, 0.05) for v in row.tolist()] for row in trainer.logprobs(rows)] for _ in range(2)]
    out = []
    for _ in range(updates):
        values = trainer.critic.values(rows) if trainer.critic is not None else [()] * len(rows)
        given = [
            CreditRow(row.trajectory, i % 3, len(row.response_ids), anchor=str(i % 2), values=value)
            for i, (row, value) in enumerate(zip(rows, values, strict=True))
        ]
        credit = compute_advantages(optimizer, CreditInput(REWARDS, ["task"] * len(REWARDS), given))
        credit = replace(credit, values=[row.values for row in given])
        reference = near[1] if optimizer.wants.reference_in_loss else None
        metrics = trainer.policy_step(
            rows, optimizer, credit, near[0], supervised=rows[:3], supervised_weight=0.1, ref_logps=reference
        )
        out.append(metrics)
    return out


def result_of(optimizer: Any, ranks: Ranks | None = None) -> dict[str, Any]:
    """Metrics, and the weights of policy and critic, after some updates."""
    trainer = trainer_of(optimizer, ranks)
    metrics = train(trainer, optimizer)
    tensors = {k: v.clone() for k, v in trainer.state_dict()["tensors"].items() if "adam" not in k}
    return {"metrics": metrics, "tensors": tensors}


def worker(rank: int, size: int, folder: str) -> None:
    """All optimizers in one process of `size`; every rank writes what it has in the end."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    try:
        found = {name: result_of(optimizer, Ranks.of_group()) for name, optimizer in optimizers().items()}
        torch.save(found, Path(folder) / f"rank-{rank}.pt")
    finally:
        dist.destroy_process_group()
