"""Trajectories and transitions as data: an exact JSON codec, and append-only files that survive a kill in mid-write."""

from __future__ import annotations
