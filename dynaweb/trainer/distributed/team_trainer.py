"""The trainer of rank 0 as the loop sees it: what all ranks take part in is called on all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dynaweb.trainer import checkpoint
from dynaweb.trainer.distributed.team import Team
from dynaweb.trainer.torch_trainer import TorchTrainer

TOGETHER = frozenset(
    {
        "supervised_step",
        "policy_step",
        "logprobs",
        "state_dict",
        "load_state_dict",
        "load_weights",
        "load_critic",
        "load",
    }
)
"""Methods of `TorchTrainer` that exchange something between ranks, or that all of them need."""


class TeamTrainer:
    """A `TorchTrainer` that all ranks have: its own methods and attributes, by the same names.

    What is read is rank 0's; what is set is set everywhere. Files are written by rank 0 and read by all.
    """

    _team: Team
    _local: TorchTrainer

    def __init__(self, team: Team, local: TorchTrainer) -> None:
        vars(self).update(_team=team, _local=local)

    def __getattr__(self, name: str) -> Any:
        return self._everywhere(name) if name in TOGETHER else getattr(self._local, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._everywhere("__setattr__")(name, value)

    def _everywhere(self, method: str) -> Callable[..., Any]:
        call = partial(self._team.call, self._local, method)
        # The other ranks may have another working directory.
        return lambda *args, **named: call(*(a.resolve() if isinstance(a, Path) else a for a in args), **named)

    def save(self, folder: Path, *, keep: int = 1) -> None:
        """Write an atomic checkpoint, by rank 0; the last `keep` stay."""
        state = self.state_dict()
        checkpoint.save(folder, state["tensors"], state["meta"], self.steps, keep=keep)
