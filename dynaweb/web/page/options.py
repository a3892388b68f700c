"""Labels of the options of a native select: each is another one, so that every option can be chosen by its label.

`scripts.LABELS` of `dynaweb.web.chromium` does the same in the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def option_labels(options: Iterable[tuple[str, str]], limit: int) -> list[str]:
    """The labels of (group, name) pairs, in order.

    A name that is cut to `limit` characters, with `/` for `|`, is the label. Equal ones get the label of their group
    before them, and those that are equal still get a number: `Red`, `Red (2)`. No label is longer than `limit`.
    """
    pairs = [(_cut(group, limit), _cut(name, limit)) for group, name in options]
    counts = Counter(name for _, name in pairs)
    taken: set[str] = set()
    labels = []
    for group, name in pairs:
        label = plain = f"{group}: {name}"[:limit].rstrip() if group and counts[name] > 1 else name
        number = 1
        while label in taken:
            number += 1
            suffix = f" ({number})"
            label = f"{plain[: limit - len(suffix)]}{suffix}".strip()
        taken.add(label)
        labels.append(label)
    return labels


def _cut(text: str, limit: int) -> str:
    return " ".join(text.split())[:limit].rstrip().replace("|", "/")
