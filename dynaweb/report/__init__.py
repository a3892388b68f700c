"""What a run found, for people: statistics with counts and intervals, the closing table, and the HTML report."""

from __future__ import annotations
