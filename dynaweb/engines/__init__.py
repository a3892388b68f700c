"""Engines turn prompts into tokens; the protocol is `dynaweb.protocols.Engine`.

- `plugin` offers the engines of the package by name, through the hook that everybody else uses.
- `scheduler` gathers the requests of concurrent episodes into batches that are the same in every run.
- `local` is the engine in this process, on the trainer's own weights.
- `vllm` is vLLM beside the trainer, with new weights pushed before the first request after an update and checked by a
  probe.
- `server` asks an OpenAI-compatible server: text in, text out, so it is no `Engine` and nothing is trained on it.

A new engine is a class with `generate` and `choice_logprobs`, and one line in a `dynaweb_engines` hook. Import the
modules themselves: this package file stays free of torch.
"""

from __future__ import annotations

import os

# Threads that spin while they wait starve the thread they wait for as soon as anything else (a browser) uses a core:
# ten times slower on two busy cores. Read by the OpenMP runtime when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
