"""What a run leaves on disk: its folder, the cache of stages that runs share, writes that survive a kill; and seeds."""

from __future__ import annotations

from dynaweb.runs.atomic import finite, write_json, write_text, write_with
from dynaweb.runs.cache import Stage, StageCache
from dynaweb.runs.folder import RunFolder, last_run, open_run
from dynaweb.runs.jsonl import JsonlWriter, read_jsonl

__all__ = [
    "JsonlWriter",
    "RunFolder",
    "Stage",
    "StageCache",
    "finite",
    "last_run",
    "open_run",
    "read_jsonl",
    "write_json",
    "write_text",
    "write_with",
]
