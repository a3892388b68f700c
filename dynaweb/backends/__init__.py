"""Backends turn losses into updates.

- Credit and losses: `advantages` has group statistics, `returns` token rewards and advantages, `loss` the parts of
  policy losses, `kl` estimators of the divergence from a reference, `policy_loss` what an optimizer sees of a
  micro-batch.
- Computing: `batch` cuts token rows into micro-batches, `scoring` computes log-probabilities of response tokens with
  gradients (`head` from hidden states, `packing` without padding, `recompute` with less memory), `update` makes one
  gradient of them.
- Moving: `stepper` takes or skips AdamW's steps at the rates of `schedule`, `masters` keeps float32 weights of
  half-precision models.
- Trainers: `torch_backend` is that of one process, `critic` learns beside it (`success` is one that says how likely
  success is), `checkpoint` writes its files, `models` loads and saves language models.
- Several processes: `ranks` adds up their parts of an update, `team` has all of them do what rank 0 says,
  `team_engine`, `team_trainer` and `team_adapters` are engine, trainer and adapters on all of them. `deepspeed_backend`
  trains with weights spread over them (`zero_config` is its configuration, `zero_stepper` its steps). `choice` makes
  the trainer that a recipe asks for.

Import the modules themselves: this package file stays free of torch.
"""

from __future__ import annotations

import dynaweb.engines  # noqa: F401  (sets how threads wait, before torch is imported)
