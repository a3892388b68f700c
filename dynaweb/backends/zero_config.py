"""What DeepSpeed is told: the section `backend`, a JSON file of the user's own, and what exactness needs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dynaweb.errors import ConfigError, MissingError
from dynaweb.files import expanded, read_json

_log = logging.getLogger("dynaweb")


@dataclass(frozen=True, slots=True)
class ZeroSettings:
    """What of DeepSpeed a run chooses: the ZeRO stage, CPU offload, and a JSON file of one's own."""

    stage: int = 2
    offload: bool = False
    config: str = ""


def zero_settings(section: Mapping[str, Any]) -> ZeroSettings:
    """What the section `backend` says of ZeRO."""
    return ZeroSettings(section["stage"], section["offload"], section["config"])


def deepspeed_config(settings: ZeroSettings, *, dtype: torch.dtype, max_grad_norm: float) -> dict[str, Any]:
    """DeepSpeed's configuration: ours, over which the user's file goes, except for what exactness needs.

    Raises `ConfigError` for a file that is missing, no JSON, or asks for what would change the result.
    """
    zero: dict[str, Any] = {"stage": settings.stage, "reduce_scatter": True, "overlap_comm": False}
    if settings.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
        if settings.stage == 3:
            zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    ours: dict[str, Any] = {
        "zero_optimization": zero,
        "bf16": {"enabled": dtype == torch.bfloat16},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "wall_clock_breakdown": False,
        "steps_per_print": 1 << 40,
    }
    if dtype == torch.bfloat16:
        ours["data_types"] = {"grad_accum_dtype": "fp32"}
    given = _merged(ours, _read(settings.config)) if settings.config else ours
    for name in ("train_batch_size", "gradient_accumulation_steps", "scheduler", "optimizer", "gradient_clipping"):
        if given.pop(name, "auto") != "auto":
            _log.warning("the DeepSpeed setting %r is dynaweb's business and is ignored", name)
    if given.get("fp16", {}).get("enabled") is True:
        raise ConfigError("DeepSpeed's fp16 rounds ratios away; use model.dtype = 'bfloat16' or 'float32'")
    if dtype == torch.bfloat16 and given["zero_optimization"]["stage"] == 1:
        # DeepSpeed's stage 1 is another program in bfloat16, which never refuses a step. Stage 2 gives the same.
        given["zero_optimization"]["stage"] = 2
    fixed = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    return {**given, **fixed, "gradient_clipping": max_grad_norm}


def _read(path: str) -> dict[str, Any]:
    return read_json(expanded(path), dict, error=ConfigError, advice="give a file of DeepSpeed settings")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for name, value in over.items():
        if isinstance(value, Mapping) and isinstance(out.get(name), Mapping):
            out[name] = _merged(out[name], value)
        elif value != "auto":
            out[name] = value
    return out


def import_deepspeed() -> Any:
    """The package. Raises `MissingError` where it is not installed or cannot run here."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as error:
        raise MissingError(
            f"backend.name = 'deepspeed' needs the package deepspeed ({error}); run: pip install 'dynaweb[deepspeed]'"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed
