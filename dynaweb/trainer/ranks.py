"""Several processes that compute parts of the same update: what they add up so that each takes the same step.

Every rank is given the same rows and credit, cuts them into the same micro-batches and computes every `size`-th of
them. Losses are shares of the whole batch, so that losses and gradients of all ranks only have to be added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

T = TypeVar("T")
BUCKET = 1 << 24
"""Gradients that travel in one message."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of a process group; the default is a process of its own."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of_group(cls) -> Ranks:
        """The ranks of the default process group, which must have been initialised."""
        return cls(dist.get_rank(), dist.get_world_size())

    def mine(self, items: Sequence[T]) -> list[T]:
        """The part that this rank computes."""
        return list(items[self.rank :: self.size])

    def missing(self, count: int) -> int:
        """How many of `count` things this rank computes less than rank 0."""
        return len(range(0, count, self.size)) - len(range(self.rank, count, self.size))

    def add(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its sum over all ranks."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace all gradients by their sums over all ranks; a rank without micro-batches takes part with zeros."""
        if self.size == 1:
            return
        for bucket in _buckets(parameters):
            for parameter in bucket:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            grads = [parameter.grad for parameter in bucket if parameter.grad is not None]
            joined = torch.cat([grad.flatten() for grad in grads])
            dist.all_reduce(joined)
            start = 0
            for grad in grads:
                grad.copy_(joined[start : start + grad.numel()].view_as(grad))
                start += grad.numel()

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in order."""
        if self.size == 1:
            return [value]
        out: list[Any] = [None] * self.size
        dist.all_gather_object(out, value)
        return out


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters of one precision and place, up to `BUCKET` numbers together: one message each is cheaper than many."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        full = bucket and sum(p.numel() for p in bucket) + parameter.numel() > BUCKET
        if full or (bucket and (bucket[0].dtype, bucket[0].device) != kind):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
