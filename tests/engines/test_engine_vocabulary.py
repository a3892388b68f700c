"""Ids that stand for no text are never drawn: vocabularies padded to a round size, and those with holes."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.local.sampling import unwritten
from dynaweb.engines.scheduler import Lockstep
from dynaweb.protocols import GenerateRequest
from dynaweb.types import Prompt


class Vocabulary:
    def __init__(self, ids: range) -> None:
        self._ids = ids

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in self._ids}


@pytest.mark.parametrize("ids", [range(40), range(0, 64, 2), range(64), range(1)])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_p": 0.5}])
def test_ids_without_text_are_never_drawn(ids: range, settings: dict[str, float]) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = LlamaForCausalLM(config)
    banned = unwritten(Vocabulary(ids), 64)
    assert set(banned) == set(range(64)) - set(ids)
    requests = [GenerateRequest(Prompt((1, 2)), 20, seed=seed, **settings) for seed in range(8)]  # type: ignore[arg-type]
    done = TransformersEngine(model, Lockstep(), unwritten=banned).generate_batch(requests)
    drawn = {token for completion in done for token in completion.token_ids}
    assert drawn <= set(ids)
    assert all(logp <= 0 for completion in done for logp in completion.logprobs)
    if not banned:
        assert done == TransformersEngine(model, Lockstep()).generate_batch(requests)
