"""The trainer turns losses into updates of a policy, a critic or a world model.

torch_trainer  TorchTrainer: supervised and policy updates of one process, AdamW, schedules, float32 masters
batching       token rows into micro-batches: shared prompts once, rows side by side without padding
logprobs       log-probabilities of response tokens in float32, without logits of every position
losses         policy updates as numbers: live rows, clean log-ratios, clipping, token weights, metrics
kl             estimators of the divergence from a reference
advantages     advantages of an update, asked of the optimizer; group statistics, returns, GAE
critic         the critic: values of states by its own model
stepper        steps of AdamW, its learning rate, and what is skipped
masters        float32 masters of half-precision weights
checkpoint     tensors and state, written atomically
resume         going on from checkpoints, and the best weights
models         load and save language models
choice         the trainer that a recipe asks for
ranks          the rows of an update shared between processes
distributed/   several processes: torch ranks, DeepSpeed, FSDP2

What an optimizer computes of its own (advantages, loss) is in its plugin, `plugins/optimizers/`. Import the modules
themselves: this package file stays free of torch.
"""

from __future__ import annotations

import dynaweb.engines  # noqa: F401  (sets how threads wait, before torch is imported)
