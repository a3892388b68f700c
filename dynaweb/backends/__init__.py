"""Backends turn losses into updates.

`advantages` has group statistics, `batch` cuts token rows into micro-batches, `scoring` computes log-probabilities of
response tokens with gradients (`head` from hidden states, `packing` without padding, `recompute` with less memory),
`masters` keeps float32 weights of half-precision models, `torch_backend` is the trainer of one process, `models` loads
and saves language models.
Import the modules themselves: this package file stays free of torch.
"""

from __future__ import annotations

import dynaweb.engines  # noqa: F401  (sets how threads wait, before torch is imported)
