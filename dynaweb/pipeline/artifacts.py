"""Artifacts: what finished stages leave, and models with what belongs to them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.config.keys import digest
from dynaweb.errors import ConfigError
from dynaweb.runs.atomic import write_with
from dynaweb.runs.names import UPDATES

if TYPE_CHECKING:
    from torch import nn

    from dynaweb.protocols import PromptFormat
    from dynaweb.stats import Estimate
    from dynaweb.trainer.vision import ModelVision
    from dynaweb.types import Trajectory

EPISODES = "trajectories.jsonl.gz"
MODEL = "model"
BUFFER, CRITIC, REFRESHED = "replay.jsonl.gz", "critic", "refreshed"
"""What an RL stage may leave besides the policy: its replay buffer, its critic, the world model that it refreshed."""


@dataclass(frozen=True, slots=True)
class StageKey:
    """The cache key of a stage (20 hex digits), with the settings and artifacts behind it, which its manifest shows."""

    text: str
    settings: Mapping[str, Any] = field(compare=False)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> StageKey:
        """The hash of settings, which are plain data."""
        return cls(digest(settings), settings)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished stage: its cache key, and the folder with its results."""

    key: str
    folder: Path

    @property
    def model(self) -> Path:
        """The folder of the weights that the stage trained."""
        return self.folder / MODEL

    def episodes(self) -> list[Trajectory]:
        """The episodes that the stage played, in order."""
        from dynaweb.data.store import TrajectoryStore

        return list(TrajectoryStore(self.folder / EPISODES))

    def data(self, name: str) -> Any:
        """A JSON file of the stage."""
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Phase:
    """One of several RL stages in a row: its number from 1, the stage before it, and the stage that made its tasks."""

    number: int = 1
    before: Artifact | None = None
    tasks: Artifact | None = None

    @property
    def updates_before(self) -> int:
        """Updates that the policy had in all phases before this one: no more than were done where time ran out."""
        if self.before is None:
            return 0
        progress = self.before.data(UPDATES)
        return int(progress["before"]) + int(progress["done"])

    def keys(self) -> dict[str, str]:
        """Cache keys of what it starts from."""
        parts = {"before": self.before, "tasks": self.tasks}
        return {f"phase {name}": artifact.key for name, artifact in parts.items() if artifact is not None}


FIRST_PHASE = Phase()


@dataclass(frozen=True, slots=True)
class Control:
    """The chosen longer SFT: its updates, its weights, and the success of each candidate on validation sites."""

    steps: int
    artifact: Artifact
    validation: dict[int, Estimate]


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The finished stages of a run so far, by what they are; None for those that the recipe does without."""

    demos: Artifact | None = None
    experts: Artifact | None = None
    """Expert data of RL and of the SFT controls: the demonstrations, or an expert for each RL task."""
    sft: Artifact | None = None
    graded: Artifact | None = None
    """Real rollouts with verdicts, which the judge is fitted on."""
    judge_fit: Artifact | None = None
    """The judge that was fitted for this run."""
    offline: Artifact | None = None
    """Recorded rollouts that are learned from offline."""
    explore: Artifact | None = None
    world_model: Artifact | None = None
    drift: Artifact | None = None
    """What the world model's errors are by step of the dream. Nothing is learned from it."""
    rl: Artifact | None = None
    longer_sft: Control | None = None
    filtered_bc: Artifact | None = None
    phase: Phase = FIRST_PHASE
    others: Mapping[str, Artifact | Control] = field(default_factory=dict)
    """Those of stages that have no field here, by name."""

    def having(self, name: str, artifact: Artifact | Control | None) -> Artifacts:
        """The same with one more."""
        if name in self.__dataclass_fields__:
            return replace(self, **{name: artifact})  # type: ignore[arg-type]
        return replace(self, others={**self.others, name: artifact}) if artifact is not None else self

    def need(self, name: str) -> Artifact:
        """The artifact of that name. Raises `ConfigError` where the stage that makes it has not run."""
        artifact = self.others.get(name) or getattr(self, name, None)
        if not isinstance(artifact, Artifact):
            stage = name.replace("_", "-")
            raise ConfigError(f"this needs the stage {stage!r}, which the recipe does without; run it first")
        return artifact

    def only(self, names: Collection[str]) -> Artifacts:
        """What a stage is handed: the artifacts of these names. So what it could read is what its key can hold."""
        own = {name: getattr(self, name) for name in names if name in self.__dataclass_fields__}
        others = {name: self.others[name] for name in names if name in self.others}
        return Artifacts(phase=self.phase, others=others, **own)

    def keys(self) -> dict[str, str]:
        """The cache keys of all of them."""
        parts = {one.name: getattr(self, one.name) for one in fields(self)} | dict(self.others)
        return {name: one.key for name, one in parts.items() if isinstance(one, Artifact)} | self.phase.keys()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights with the tokenizer and the prompt layer that belong to them."""

    model: nn.Module
    tokenizer: Any
    format: PromptFormat
    vision: ModelVision | None = None
    """How the model sees, where the policy is shown pictures of pages."""

    def save(self, folder: Path) -> None:
        """Write the weights into a stage's folder, as a Hugging Face model with its tokenizer, and its processor where
        it sees."""
        from dynaweb.trainer.models import save_model

        save_model(self.model, folder / MODEL, self.tokenizer if self.vision is None else self.vision)

    def write(self, folder: Path) -> None:
        """The same in the middle of training, which goes on with the model as it is."""
        self.save(folder)


def critic_left(stage: Path | None) -> Path | None:
    """The folder of the critic that an RL stage left; None where it left none."""
    return stage / CRITIC if stage is not None and (stage / CRITIC).is_dir() else None


def refreshed_by(stage: Path) -> Path | None:
    """The weights of the world model that an RL stage refreshed; None where it refreshed none."""
    weights = stage / REFRESHED / MODEL
    return weights if weights.is_dir() else None


def link(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy where links are not possible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with suppress(OSError):
        target.hardlink_to(source)
        return
    write_with(target, lambda temporary: shutil.copyfile(source, temporary))


def files_hash(folder: Path) -> str:
    """A hash of the names and contents of all files of a folder. Raises `ConfigError` when it has none."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise ConfigError(f"the model folder {folder} holds no files")
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:20]
