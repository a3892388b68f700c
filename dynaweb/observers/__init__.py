"""First-party observers, on the same hooks as everybody else's: the progress display and the metrics file."""

from __future__ import annotations

from dynaweb.observers.metrics import MetricsFile, read_metrics
from dynaweb.observers.progress import ProgressDisplay

__all__ = ["MetricsFile", "ProgressDisplay", "read_metrics"]
