"""Kinds of outputs."""

from __future__ import annotations

from enum import Enum


class RequestOutputKind(Enum):
    """Only the last one is used."""

    FINAL_ONLY = 2
