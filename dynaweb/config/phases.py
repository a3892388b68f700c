"""Sections about where rollouts come from besides fresh play: recorded ones, a replay buffer, tasks made of
failures."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dynaweb.config.sections import Section, Temperature
from dynaweb.config.server import Server


class Offline(Section):
    """Learning from rollouts that were played once, before the updates, by the SFT policy in the real environment."""

    episodes: int = Field(default=0, ge=0)
    """How many; every update draws its `rl.tasks` x `rl.n` from them. 0 = every update plays its own."""
    temperature: Temperature = 1.0
    """Sampling temperature of the policy that plays them."""


class Replay(Section):
    """Past successes that an update learns from again (WebRL, arXiv 2411.02337, section 2.2)."""

    capacity: int = Field(default=0, ge=0)
    """Most steps that are remembered, the oldest go first; 0 = no replay."""
    ratio: float = Field(default=2.0, gt=0)
    """Remembered steps of one update for each of its own (released code: at most 2)."""
    perplexity: tuple[float, float] = (1 / 0.95, 1 / 0.5)
    """Only steps whose perplexity under the policy of the moment lies in this band: neither known by heart nor
    foreign."""

    @model_validator(mode="after")
    def _band(self) -> Replay:
        low, high = self.perplexity
        if not 1 <= low < high:
            raise ValueError(f"perplexity must be a band with 1 <= low < high, not [{low}, {high}]")
        return self


class Phases(Section):
    """Reinforcement learning in phases, each on tasks made of what the phase before has failed (WebRL, section 2.1).

    Every phase starts from the policy of the one before, and its reference is the policy that it starts from; critic
    and replay buffer are handed on.
    """

    count: int = Field(default=1, ge=1)
    """Phases, of `rl.updates` updates each."""
    generator: Literal["auto", "environment", "server"] = "auto"
    """Who makes new tasks of failed ones: the environment, where it can make checked variants, or a language model
    behind `server`. `auto`: the environment if it can, else the server."""
    tasks: int = Field(default=0, ge=0)
    """Tasks of a phase after the first; 0 = `rl.updates` x `rl.tasks`."""
    proposals: int = Field(default=4, ge=1)
    """Proposals for each task that is wanted, before they are filtered."""
    value: tuple[float, float] = (0.05, 0.75)
    """A new task is kept when the critic's chance of success on its first page lies in this band."""
    server: Server = Field(default_factory=Server)
    """The model that makes tasks, and says whether they can be done on the site."""

    @model_validator(mode="after")
    def _band(self) -> Phases:
        low, high = self.value
        if not 0 <= low < high <= 1:
            raise ValueError(f"value must be a band with 0 <= low < high <= 1, not [{low}, {high}]")
        return self
