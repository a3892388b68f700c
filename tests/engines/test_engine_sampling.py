"""Sampling: frequencies, reported log-probabilities, nucleus, and independence of batch mates."""

from __future__ import annotations

import math

import pytest
import torch

from dynaweb.engines.local.sampling import Sampler, invert, nucleus, uniforms
from dynaweb.protocols import GenerateRequest
from dynaweb.types import Prompt

CPU = torch.device("cpu")


def _request(seed: int, temperature: float = 1.0, top_p: float = 1.0, count: int = 4) -> GenerateRequest:
    return GenerateRequest(Prompt((1,)), count, temperature, top_p, seed)


def test_uniforms_depend_on_the_seed_and_are_a_stream() -> None:
    assert uniforms(3, 8)[:5].tolist() == uniforms(3, 5).tolist()
    assert uniforms(3, 5).tolist() != uniforms(4, 5).tolist()
    assert uniforms((1 << 63) - 1, 1)[0] != uniforms(0, 1)[0]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.7)])
def test_frequencies_and_logprobs_are_those_of_the_distribution(temperature: float, top_p: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    count = 4000
    sampler = Sampler.of([_request(seed, temperature, top_p) for seed in range(count)], CPU)
    token, logp = sampler.draw(logits.expand(count, -1), torch.arange(count), 2)
    want = torch.softmax(logits / temperature, dim=-1)
    if top_p < 1:
        # 0.7 is reached by the two most likely tokens: 0.55 + 0.20.
        want = torch.where(torch.tensor([True, True, False, False, False]), want, 0.0)
        want = want / want.sum()
    share = torch.bincount(token, minlength=5) / count
    assert (share - want).abs().max() < 4 * math.sqrt(0.25 / count)
    torch.testing.assert_close(logp, want[token].log())


def test_greedy_takes_the_best_and_reports_the_models_own_logprob() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]]).expand(2, -1)
    sampler = Sampler.of([_request(0, temperature=0.0, top_p=0.5), _request(1, temperature=1.0)], CPU)
    token, logp = sampler.draw(logits, torch.arange(2), 0)
    assert token[0] == 1
    torch.testing.assert_close(logp[0], torch.log_softmax(logits[0], -1)[1])


def test_a_row_draws_the_same_whatever_shares_the_batch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 50)
    requests = [_request(seed, 0.8, 0.9 if seed % 2 else 1.0) for seed in range(6)]
    together = Sampler.of(requests, CPU)
    for row in range(6):
        alone = Sampler.of([requests[row]], CPU)
        for step in range(4):
            token, logp = together.draw(logits, torch.arange(6), step)
            single, single_logp = alone.draw(logits[row : row + 1], torch.tensor([0]), step)
            assert token[row] == single[0]
            torch.testing.assert_close(logp[row], single_logp[0])


def test_nucleus_keeps_the_smallest_set_and_at_least_one() -> None:
    logp = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]).log()
    kept = nucleus(logp, torch.tensor([0.5, 0.51, 1e-6])).exp()
    torch.testing.assert_close(kept, torch.tensor([[1.0, 0, 0], [0.625, 0.375, 0], [1.0, 0, 0]]))


def test_tokens_of_probability_zero_are_never_drawn() -> None:
    inf = math.inf
    logp = torch.tensor([[-inf, 0.0, -inf], [-inf, 0.0, -inf]])
    edge = torch.tensor([0.0, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert invert(logp, edge).tolist() == [1, 1]
