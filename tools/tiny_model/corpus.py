"""Token sequences of the pre-training corpus in flat arrays: ids, target weights, offsets, kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynaweb.types import Prompt

KINDS: tuple[str, ...] = ("click", "act", "goal", "point", "change", "next", "judge")


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sequence; `weights` has one entry per id, 1 on what the model has to produce and 0 elsewhere."""

    kind: str
    ids: tuple[int, ...]
    weights: tuple[int, ...]

    @classmethod
    def of(cls, kind: str, prompt: Prompt, target: Sequence[int]) -> Sample:
        """A prompt that is read and a target that is produced."""
        return cls(kind, (*prompt.ids, *target), (*([0] * len(prompt)), *([1] * len(target))))


class Corpus:
    """S samples: `ids` and `weights` flat over all tokens, `offsets` [S + 1], `kinds` [S] (index into `KINDS`)."""

    def __init__(self, ids: np.ndarray, weights: np.ndarray, offsets: np.ndarray, kinds: np.ndarray) -> None:
        self.ids, self.weights, self.offsets, self.kinds = ids, weights, offsets, kinds
        self.lengths = np.diff(offsets)

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Corpus:
        """Pack samples."""
        ids: list[np.ndarray] = []
        weights: list[np.ndarray] = []
        kinds: list[int] = []
        for sample in samples:
            ids.append(np.array(sample.ids, np.uint16))
            weights.append(np.array(sample.weights, np.uint8))
            kinds.append(KINDS.index(sample.kind))
        offsets = np.concatenate([[0], np.cumsum([len(one) for one in ids])]).astype(np.int64)
        return cls(np.concatenate(ids), np.concatenate(weights), offsets, np.array(kinds, np.uint8))

    @classmethod
    def join(cls, parts: Sequence[Corpus]) -> Corpus:
        """One corpus of several."""
        lengths = np.concatenate([part.lengths for part in parts])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        flat = [np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "weights")]
        return cls(flat[0], flat[1], offsets, np.concatenate([part.kinds for part in parts]))

    @classmethod
    def load(cls, path: Path) -> Corpus:
        """Read what `save` wrote."""
        with np.load(path) as data:
            return cls(data["ids"], data["weights"], data["offsets"], data["kinds"])

    def save(self, path: Path) -> None:
        """Write a compressed npz file."""
        np.savez_compressed(path, ids=self.ids, weights=self.weights, offsets=self.offsets, kinds=self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def by_kind(self, kind: str) -> np.ndarray:
        """Indices of the samples of a kind."""
        return np.flatnonzero(self.kinds == KINDS.index(kind))

    def padded(self, rows: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and weights of `rows`, each [len(rows), width], padded on the right with 0 (`<pad>`)."""
        at = self.offsets[rows][:, None] + np.arange(width)[None, :]
        inside = np.arange(width)[None, :] < self.lengths[rows][:, None]
        at = np.where(inside, at, 0)
        ids = np.where(inside, self.ids[at], 0).astype(np.int32)
        return ids, np.where(inside, self.weights[at], 0).astype(np.float32)
