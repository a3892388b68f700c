"""Generation by all ranks: each batch of rank 0's episodes is cut into neighbouring shares, one for each rank.

What a request gets depends on its own prompt and seed, so the number of ranks changes it by float noise only. Shares
are neighbours in the order of prompts: the rollouts of a task stay together and share what their prompts share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from dynaweb.backends.team import Team, split, wants_team
from dynaweb.backends.team_adapters import share_adapters
from dynaweb.engines.stopping import cut
from dynaweb.engines.transformers_engine import ChoiceRequest, TransformersEngine, by_prompt
from dynaweb.protocols import Completion, GenerateRequest


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


class TeamEngine:
    """Rank 0's `TransformersEngine`, whose batches are computed by all ranks."""

    exact = True

    def __init__(self, team: Team, engine: TransformersEngine, pad_id: int) -> None:
        self._team, self._engine = team, engine
        self.model, self.stats = engine.model, engine.stats
        share_adapters(team, engine.model)
        settings = {"max_batch_tokens": engine.max_batch_tokens, "static": engine.static}
        self._share = team.make("dynaweb.backends.team_engine:share_of", engine.model, pad_id, settings)
        self._generations = engine.lockstep.queue(self.generate_batch)
        self._choices = engine.lockstep.queue(self.choice_batch)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion."""
        return await self._generations.ask(self._engine.fitted(request))

    async def choice_logprobs(self, prompt_ids: tuple[int, ...], choices: tuple[int, ...]) -> tuple[float, ...]:
        """Natural-log probability of each token of `choices` as the next token after the prompt."""
        self._engine.check(prompt_ids, 0)
        return await self._choices.ask((prompt_ids, choices))

    def weights_changed(self) -> None:
        """Call after weights were replaced."""
        self._team.call(self._share, "weights_changed")

    def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Completions of many requests, in order; equal ones are computed once."""
        distinct = sorted(set(requests), key=by_prompt)
        found: list[Completion] = self._team.call(self._share, "generate", distinct)
        decode = self._engine.decode
        cuts = [cut(one, asked.stop, decode) if decode else one for asked, one in zip(distinct, found, strict=True)]
        done = dict(zip(distinct, cuts, strict=True))
        self._count(requests, sum(len(one.token_ids) for one in found))
        return [done[request] for request in requests]

    def choice_batch(self, requests: Sequence[ChoiceRequest]) -> list[tuple[float, ...]]:
        """Next-token log-probabilities, in order."""
        distinct = sorted(set(requests))
        found: list[tuple[float, ...]] = self._team.call(self._share, "choose", distinct)
        done = dict(zip(distinct, found, strict=True))
        self._count(requests, 0)
        return [done[request] for request in requests]

    def _count(self, requests: Sequence[Any], new_tokens: int) -> None:
        self.stats.requests += len(requests)
        self.stats.batches += 1
        self.stats.new_tokens += new_tokens
