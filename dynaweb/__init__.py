"""Train LLM web agents by reinforcement learning in the dreams of a learned web world model."""

from __future__ import annotations

__version__ = "0.1.0"
