"""Engines turn prompts into tokens.

`scheduler` gathers the requests of concurrent episodes into batches that are the same in every run, `sampling` draws
tokens that depend on a request's own seed only, `llama` is a compact forward for Llama-type models, `sharing` finds
what prompts have in common, `sessions` decodes batches with that forward or any other model of transformers,
`recording` with `fixed_llama` and `fixed_generic` makes their steps fast on a GPU, and `transformers_engine` puts these
together. Import the modules themselves: this package file stays free of torch.
"""

from __future__ import annotations

import os

# Threads that spin while they wait starve the thread they wait for as soon as anything else (a browser) uses a core:
# ten times slower on two busy cores. Read by the OpenMP runtime when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
