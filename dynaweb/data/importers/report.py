"""What importers share: the account of what was read and left out, and the files of a source."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from dynaweb.errors import MissingError


@dataclass(slots=True)
class ImportReport:
    """How many steps were read, what was made of them, and why the others were left out."""

    read: int = 0
    transitions: int = 0
    """How many steps became transitions."""
    trajectories: int = 0
    """How many whole episodes were read, where these were asked for."""
    steps: int = 0
    """How many steps these have."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Steps that were left out, by reason; those of an episode that is left out count for its reason."""
    dropped_episodes: Counter[str] = field(default_factory=Counter)
    """Episodes that were left out whole, by reason."""
    noted: Counter[str] = field(default_factory=Counter)
    """What was odd about steps that were taken."""

    def drop(self, reason: str, count: int = 1) -> None:
        """Note steps that are left out."""
        self.dropped[reason] += count

    def drop_episode(self, reason: str, steps: int) -> None:
        """Note an episode that is left out with all its steps."""
        self.dropped_episodes[reason] += 1
        self.drop(reason, steps)

    def note(self, what: str, count: int = 1) -> None:
        """Note something odd."""
        self.noted[what] += count

    def __str__(self) -> str:
        whole = self.trajectories or (self.dropped_episodes and not self.transitions)
        kind = f"{self.trajectories} trajectories ({self.steps} steps)" if whole else f"{self.transitions} transitions"
        lines = [f"{kind} of {self.read} steps"]
        for reason, count in self.dropped.most_common():
            episodes = self.dropped_episodes[reason]
            if not count and not episodes:
                continue
            lines.append(f"  left out: {count} x {f'in {episodes} episodes: ' if episodes else ''}{reason}")
        lines += [f"  kept, but: {count} x {reason}" for reason, count in self.noted.most_common()]
        return "\n".join(lines)


def files_of(source: str, *patterns: str) -> list[Path]:
    """A file itself, or all files of a folder that fit a pattern, sorted. Raises `MissingError` when there is none."""
    path = Path(source)
    listed = (file for pattern in patterns for file in path.rglob(pattern) if file.is_file())
    files = [path] if path.is_file() else sorted(set(listed))
    if not files:
        raise MissingError(f"{source} is no file, and no folder that holds {' or '.join(patterns)}")
    return files
