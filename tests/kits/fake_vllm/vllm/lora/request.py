"""Adapters in a folder."""

from __future__ import annotations

from typing import NamedTuple


class LoRARequest(NamedTuple):
    """Name, number and folder."""

    lora_name: str
    lora_int_id: int
    lora_path: str
