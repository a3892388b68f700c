"""float32 masters of half-precision weights: what an optimizer moves, and where gradients add up.

bfloat16 has 8 significant bits: a step of 1e-4 on a weight near 1 would be lost, and so would the share of a late
micro-batch in a sum of many. So AdamW moves float32 copies, gradients are added to these as soon as a micro-batch has
made them (the half-precision ones are freed at once), and the model gets the rounded result after each step. Weights
of float32 or wider are their own masters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from dynaweb.engines.local.llama import HALF


class Masters:
    """The masters of some parameters, by the parameters' names: `leaves`, with gradients of their own."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        self.leaves: dict[str, nn.Parameter] = {
            name: nn.Parameter(parameter.detach().float()) if parameter.dtype in HALF else parameter
            for name, parameter in self.parameters.items()
        }
        self._apart = {name: leaf for name, leaf in self.leaves.items() if leaf is not self.parameters[name]}

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """While it lasts, backward passes add the parameters' gradients to those of the leaves, in float32."""
        parameters: dict[str, Any] = self.parameters
        hooks = [
            parameters[name].register_post_accumulate_grad_hook(partial(_add, leaf))
            for name, leaf in self._apart.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def publish(self) -> None:
        """Round the leaves into the parameters."""
        if self._apart:
            with torch.no_grad():
                targets = [self.parameters[name].detach() for name in self._apart]
                torch._foreach_copy_(targets, [leaf.detach() for leaf in self._apart.values()])

    def drop_gradients(self) -> None:
        """Forget all gradients, of leaves and parameters."""
        for tensor in (*self.parameters.values(), *self._apart.values()):
            tensor.grad = None


def _add(leaf: nn.Parameter, parameter: torch.Tensor) -> None:
    if parameter.grad is None:
        return
    if leaf.grad is None:
        leaf.grad = parameter.grad.to(leaf.dtype)
    else:
        leaf.grad.add_(parameter.grad)
    parameter.grad = None
