"""Sections about judges: how trainable ones are fitted, and how any is audited while a policy learns from it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynaweb.config.sections import COLDEST, Section, Temperature


class JudgeFit(Section):
    """Fitting of a trainable judge (`--reward orm`) on real episodes that the environment has graded."""

    episodes: int = Field(default=240, ge=1)
    """Real episodes of the SFT policy on training tasks, each with the environment's verdict."""
    temperature: Temperature = 1.0
    """Sampling temperature of the policy that plays them."""
    steps: int = Field(default=30, ge=0)
    """Optimizer steps; 0 = the base model as it is, calibrated only."""
    batch: int = Field(default=32, ge=1)
    """Episodes of one optimizer step."""
    lr: float = Field(default=1e-4, gt=0)
    """Peak learning rate of AdamW; 3 warm-up steps, linear decay to 10 %."""
    holdout: float = Field(default=0.5, gt=0, lt=1)
    """Share of the sites that are not fitted on: half of their episodes calibrate, the other sites measure."""
    prefixes: bool = False
    """Also learn from the pages on the way, each with the verdict on the whole episode: a value function rather than a
    judge of finished episodes (WMA's, arXiv 2410.13232)."""
    data: str = ""
    """A trajectory store of graded real episodes that are fitted on too."""


class Audit(Section):
    """Checking the judge while the policy learns from it: dreams are repeated on real pages, where a verdict exists."""

    every: int = Field(default=0, ge=0)
    """Updates between two audits; 0 = never."""
    episodes: int = Field(default=32, ge=1)
    """Rollouts of the last update that an audit repeats, at most."""
    confidence: float = Field(default=0.8, gt=0, lt=1)
    """Confidence of the interval by which success must have fallen before an alarm speaks of a fall."""
    margin: float = Field(default=0.02, ge=0, le=1)
    """How much the judge's reward must have risen at least."""
    false_positive: float = Field(default=0.5, gt=0, le=1)
    """An alarm also sounds when the judge surely (95 %) accepts more than this share of real failures."""
    stop: bool = False
    """An alarm ends the run with an error; the weights of that moment are kept as a checkpoint."""


class Agent(Section):
    """How a policy acts at evaluation: by itself, or after looking ahead in a world model."""

    kind: Literal["direct", "lookahead"] = "direct"
    """`lookahead`: propose several actions, imagine where each leads, let the judge value it, and do the best one
    (WebDreamer, arXiv 2411.06559)."""
    candidates: int = Field(default=4, ge=1)
    """Replies that are sampled for one decision; equal actions count once."""
    temperature: float = Field(default=1.0, ge=COLDEST)
    """Sampling temperature of the candidates."""
    depth: int = Field(default=2, ge=1)
    """Steps that are imagined for each candidate, its own included; the policy itself goes on after the first."""
    samples: int = Field(default=1, ge=1)
    """Imagined futures of one candidate, whose values are averaged."""
    world_temperature: Temperature = 0.7
    """Sampling temperature of the world model."""
