"""What a stage costs: seconds, tokens, steps in the environment and memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from dynaweb.engines.server import ServerStats
from dynaweb.protocols import Counted, EngineStats
from dynaweb.runs.names import IMAGE_TOKENS, PROMPT_TOKENS_LEFT_OUT, PROMPTS, PROMPTS_CUT
from dynaweb.types import Prompt

MIB = 1024 * 1024
SAMPLE_EVERY = 3.0
"""Seconds between two looks at the memory of child processes, at least: one takes some 50 ms beside a browser."""
HIGHEST = "peak_memory_mib"


@dataclass(slots=True)
class Prompts:
    """Counts prompts, those that were cut because the model has no room for them, and the tokens left out of these."""

    written: int = 0
    cut: int = 0
    tokens_left_out: int = 0

    def add(self, prompt: Prompt) -> None:
        """Count one."""
        self.written += 1
        self.cut += prompt.cut > 0
        self.tokens_left_out += prompt.cut

    def cost(self) -> dict[str, float]:
        """The counts; nothing where no prompt was written."""
        if not self.written:
            return {}
        return {
            PROMPTS: float(self.written),
            PROMPTS_CUT: float(self.cut),
            PROMPT_TOKENS_LEFT_OUT: float(self.tokens_left_out),
        }


@dataclass(slots=True)
class Meter:
    """Counts what a stage costs. `tokens_trained` is added to by the stages themselves, steps by `count`."""

    tokens_trained: int = 0
    prompts: Prompts = field(default_factory=Prompts)
    steps: dict[str, int] = field(default_factory=lambda: {"browser_steps": 0})
    engines: list[Counted] = field(default_factory=list)
    earlier: Mapping[str, float] = field(default_factory=dict)
    """What a killed attempt had spent up to its last checkpoint."""
    started: float = field(default_factory=time.monotonic)
    memory: float = 0.0
    """Highest memory of this process and its children that was seen, in MiB."""
    _sampled: float = 0.0

    def count(self, steps: int, *, browser: bool, evaluation: bool) -> None:
        """Add the steps of a finished real episode.

        `browser_steps` are those in a real browser, `browser_steps_evaluation` the part of them that only evaluates;
        `static_steps` were played without a browser.
        """
        names = (
            ["browser_steps", *(["browser_steps_evaluation"] if evaluation else [])] if browser else ["static_steps"]
        )
        for name in names:
            self.steps[name] = self.steps.get(name, 0) + steps
        self.sample()

    def resumed(self) -> None:
        """A checkpoint was read: prompts that this attempt wrote before were counted when it was saved."""
        if PROMPTS in self.earlier:
            self.prompts = Prompts()

    def sample(self, *, now: bool = False) -> None:
        """Look at the memory of this process and its children, at most once in `SAMPLE_EVERY` seconds unless `now`."""
        if now or time.monotonic() - self._sampled >= SAMPLE_EVERY:
            self._sampled = time.monotonic()
            self.memory = max(self.memory, memory_mib(self.memory))

    def cost(self) -> dict[str, float]:
        """The counts as a stage's cost; memory is the peak so far, of the browser too where psutil is installed."""
        self.sample(now=True)
        spent = {
            "seconds": time.monotonic() - self.started,
            "tokens_generated": float(sum(engine.stats.new_tokens for engine in self.engines)),
            "tokens_trained": float(self.tokens_trained),
            **self.prompts.cost(),
            **self._images(),
            **self._starts(),
            **self._servers(),
            **{name: float(count) for name, count in self.steps.items()},
        }
        before = {name: value for name, value in self.earlier.items() if name != HIGHEST}
        total = {name: spent.get(name, 0.0) + before.get(name, 0.0) for name in [*spent, *before.keys() - spent.keys()]}
        return {**total, HIGHEST: max(self.memory, peak_memory_mib(), self.earlier.get(HIGHEST, 0.0))}

    def _images(self) -> dict[str, float]:
        """Tokens of images that engines here read; nothing where there were none."""
        read = sum(engine.stats.image_tokens for engine in self.engines if isinstance(engine.stats, EngineStats))
        return {IMAGE_TOKENS: float(read)} if read else {}

    def _starts(self) -> dict[str, float]:
        """How often engines started servers of their own, such as vLLM; nothing where none did."""
        starts = sum(engine.stats.starts for engine in self.engines if isinstance(engine.stats, EngineStats))
        return {"engine_starts": float(starts)} if starts else {}

    def _servers(self) -> dict[str, float]:
        """What model servers were asked; nothing where there is none."""
        servers = [engine.stats for engine in self.engines if isinstance(engine.stats, ServerStats)]
        if not servers:
            return {}
        return {
            "server_requests": float(sum(stats.requests for stats in servers)),
            "server_prompt_tokens": float(sum(stats.prompt_tokens for stats in servers)),
            "server_cost": float(sum(stats.cost for stats in servers)),
        }


def peak_memory_mib() -> float:
    """Largest resident size of this process alone so far."""
    unit = MIB if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def memory_mib(known: float = 0.0) -> float:
    """Memory of this process and its children (the browser) now; 0 without psutil.

    On Linux, memory that processes share is divided among them (proportional set size). That takes milliseconds for
    each process, so where all resident sizes together are not above `known`, in MiB, their sum is returned instead.
    """
    library = _psutil()
    if library is None:
        return 0.0
    process = library.Process()
    family = [process, *process.children(recursive=True)]
    resident = sum(_size(library, one, "memory_info", "rss") for one in family) / MIB
    if resident <= known or not library.LINUX:
        return resident
    return sum(_size(library, one, "memory_full_info", "pss") for one in family) / MIB


def _size(library: Any, process: Any, call: str, name: str) -> float:
    try:
        return float(getattr(getattr(process, call)(), name))
    except library.Error:  # it ended meanwhile
        return 0.0


@cache
def _psutil() -> Any:
    try:
        return import_module("psutil")
    except ImportError:
        return None
