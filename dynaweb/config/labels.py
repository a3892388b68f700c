"""Settings as people read them: names with their values, such as `opt=gspo, dream.horizon=4`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Labels = tuple[tuple[str, str], ...]
"""Settings by name with their values, in the order in which they are shown."""


def labels_text(labels: Iterable[Sequence[str]]) -> str:
    """As in `wm=delta, dream.horizon=4`; '' without any."""
    return ", ".join(f"{name}={value}" for name, value in labels)
