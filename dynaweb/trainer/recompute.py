"""Gradient checkpointing (Chen et al., arXiv 1604.06174): activations of a layer are made again in the backward pass.

What stays in memory is one hidden state per layer; the price is one more forward pass, a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dynaweb.errors import ConfigError


def recomputed(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """The function's result, without what its backward pass needs: that is computed when it is needed."""
    if not torch.is_grad_enabled():
        return function(*args, **named)
    return checkpoint(partial(function, **named), *args, use_reentrant=False, preserve_rng_state=False)


@contextmanager
def recomputing(model: nn.Module) -> Iterator[None]:
    """While it lasts, the layers of a model of transformers are `recomputed`.

    Its own switch works in training mode only, where dropout would be on. Raises `ConfigError` when it has no layers
    that are made for it.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers: list[Any] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"{type(model).__name__} has no layers that can be recomputed; set model.checkpointing = false"
        )
    for layer in layers:
        layer.forward = partial(recomputed, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
