"""The fixtures of dynaweb's conformance suites."""

from __future__ import annotations

pytest_plugins = ["dynaweb.testing.fixtures"]
