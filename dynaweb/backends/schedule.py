"""Learning rate over the updates of a stage: linear warm-up, then linear decay to a fraction of the peak."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """`peak` is reached after `warmup` updates; the last of `total` updates uses `final_fraction` x `peak`."""

    peak: float
    total: int
    warmup: int = 0
    final_fraction: float = 0.1

    def at(self, step: int) -> float:
        """Learning rate of update `step`, counted from 0; updates beyond `total` keep the last value."""
        if step < self.warmup:
            return self.peak * (step + 1) / (self.warmup + 1)
        span = max(1, self.total - 1 - self.warmup)
        done = min(1.0, (step - self.warmup) / span)
        return self.peak * (1.0 - done * (1.0 - self.final_fraction))
