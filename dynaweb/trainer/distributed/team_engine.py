"""Generation by all ranks: each batch of rank 0's episodes is cut into neighbouring shares, one for each rank.

What a request gets depends on its own prompt and seed, so the number of ranks changes it by float noise only. Shares
are neighbours in the order of prompts: the rollouts of a task stay together and share what their prompts share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from dynaweb.engines.local.engine import ChoiceRequest, TransformersEngine, by_prompt
from dynaweb.engines.local.sampling import cut
from dynaweb.protocols import Completion, GenerateRequest
from dynaweb.trainer.distributed.team import Team, share_adapters, split, wants_team


class Share:
    """A rank's engine on its own copy of the weights."""

    def __init__(self, team: Team, model: nn.Module, pad_id: int, settings: dict[str, Any]) -> None:
        from dynaweb.engines.scheduler import Lockstep

        self._team = team
        self.engine = TransformersEngine(model, Lockstep(), pad_id=pad_id, **settings)

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """All completions, in order; this rank computes its share."""
        return self._gathered(self.engine.generate_batch, requests)

    def choose(self, requests: Sequence[ChoiceRequest]) -> list[tuple[float, ...]]:
        """All log-probabilities, in order; this rank computes its share."""
        return self._gathered(self.engine.choice_batch, requests)

    def weights_changed(self) -> None:
        """See `TransformersEngine`."""
        self.engine.weights_changed()

    def _gathered(self, compute: Any, requests: Sequence[Any]) -> list[Any]:
        ranks = self._team.ranks
        mine = requests[split(len(requests), ranks.size)[ranks.rank]]
        parts = self._team.gather(compute(mine) if mine else [])
        return [one for part in parts for one in part]


@wants_team
def share_of(team: Team, model: nn.Module, pad_id: int, settings: dict[str, Any]) -> Share:
    """For `Team.make`; `settings` are further arguments of the engine."""
    return Share(team, model, pad_id, settings)


class TeamEngine(TransformersEngine):
    """Rank 0's engine, whose batches are computed by all ranks."""

    def __init__(self, team: Team, engine: TransformersEngine, pad_id: int) -> None:
        names = ("max_batch_tokens", "static", "unwritten", "vision")
        settings: dict[str, Any] = {name: getattr(engine, name) for name in names}
        super().__init__(engine.model, engine.batching, pad_id=pad_id, decode=engine.decode, **settings)
        self._team = team
        share_adapters(team, engine.model)
        self._share = team.make("dynaweb.trainer.distributed.team_engine:share_of", engine.model, pad_id, settings)

    def weights_changed(self) -> None:
        """Call after weights were replaced."""
        super().weights_changed()
        self._team.call(self._share, "weights_changed")

    def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Completions of many requests, in order; equal ones are computed once."""
        distinct = sorted(set(requests), key=by_prompt)
        completions: list[Completion] = self._team.call(self._share, "generate", distinct)
        self._count(requests, sum(len(one.token_ids) for one in completions))
        if (decode := self.decode) is not None:
            completions = [cut(one, asked.stop, decode) for asked, one in zip(distinct, completions, strict=True)]
        by_request = dict(zip(distinct, completions, strict=True))
        return [by_request[request] for request in requests]

    def choice_batch(self, requests: Sequence[ChoiceRequest]) -> list[tuple[float, ...]]:
        """Next-token log-probabilities, in order."""
        distinct = sorted(set(requests))
        by_request = dict(zip(distinct, self._team.call(self._share, "choose", distinct), strict=True))
        self._count(requests, 0)
        return [by_request[request] for request in requests]

    def _count(self, requests: Sequence[Any], new_tokens: int) -> None:
        self.stats.requests += len(requests)
        self.stats.batches += 1
        self.stats.new_tokens += new_tokens
