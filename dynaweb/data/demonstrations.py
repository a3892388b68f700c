"""Demonstrations from a source other than scripted experts: whole episodes of a store, of a run's folder or of the hub.

    batch = read_demonstrations("mine.jsonl.gz")        # batch.episodes, batch.dropped
    as_tasks_of(batch.episodes, tasks).episodes         # the same, each with the run's task where it is the same one

An episode counts as a success unless somebody said that it is none: a verdict of its environment, a judge, a reward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from dynaweb.config.keys import digest, file_key
from dynaweb.data.store import SUFFIX, existing_trajectories
from dynaweb.errors import ConfigError, MissingError, hint
from dynaweb.runs.checksums import TRAJECTORIES, check_records
from dynaweb.types import NO_PROMPT, EpisodeFacts, Judgement, Step, Task, Trajectory

Only = Literal["checked", "judged"]
"""Whose word of a success counts: the environment's own check, or a judge."""
ONLY: tuple[Only, ...] = get_args(Only)
SUCCESS = 0.5
"""A score from here on counts as success, as in `dynaweb.judges.reward`."""
RUN_STORES = ("collected", "demos", "experts")
"""The stores of a run's folder that hold demonstrations: what `dynaweb collect` made, and what SFT saw."""
HELD_OUT = ("validation", "test")
"""The splits of which nothing may be learned."""
UNJUDGED = "nobody judged it, and it was given as a demonstration"


@dataclass(slots=True)
class Demonstrations:
    """The usable episodes of a source, why the others are not, and how many look like a task's but may not be."""

    episodes: list[Trajectory] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    unsure: Counter[str] = field(default_factory=Counter)


def read_demonstrations(source: str) -> Demonstrations:
    """All usable episodes of a source, each as an expert's success without tokens: those are another model's.

    Raises `MissingError` for a source that is not there, `ConfigError` for one without a usable episode.
    """
    batch = Demonstrations()
    for path in stores_of(source):
        for trajectory in existing_trajectories(path):
            reason = unusable(trajectory)
            if reason:
                batch.dropped[reason] += 1
                continue
            batch.episodes.append(as_expert(trajectory))
    if not batch.episodes:
        raise ConfigError(refused(source, batch.dropped))
    return batch


def refused(source: str, dropped: Counter[str]) -> str:
    """Why a source has no demonstration, in one line."""
    why = ", ".join(f"{count} x {reason}" for reason, count in dropped.most_common()) or "it holds no episode"
    return f"{source} has no usable demonstration ({why}); give one with a successful episode (data.demos)"


def unusable(trajectory: Trajectory) -> str:
    """Why nothing can be learned from an episode as a demonstration; '' where something can."""
    score = score_of(trajectory)
    if trajectory.source == "dream" or any(step.facts.imagined for step in trajectory.steps):
        return "its pages were dreamed"
    if trajectory.end == "infrastructure":
        return "the infrastructure broke it"
    if trajectory.task.split in HELD_OUT:
        return f"its task is held out (split {trajectory.task.split})"
    if score is not None and score < SUCCESS:
        return f"it failed (verdict or reward below {SUCCESS})"
    if trajectory.end == "invalid":
        return "an invalid action ended it"
    if all(step.action is None or step.error for step in trajectory.steps):
        return "no step has an action that was done"
    return ""


def passes(trajectory: Trajectory, only: Only) -> bool:
    """Whether an episode is a success by the environment's check (`checked`), or by a judge (`judged`)."""
    verdict = trajectory.facts.verdict if only == "checked" else trajectory.judgement
    score = verdict.score if verdict is not None else None
    return trajectory.end != "infrastructure" and score is not None and score >= SUCCESS


def one_of(only: str) -> Only:
    """The `Only` of that name. Raises `ConfigError` for another."""
    for name in ONLY:
        if name == only:
            return name
    raise ConfigError(f"--only {only} is not known; {hint(only, ONLY)}")


def score_of(trajectory: Trajectory) -> float | None:
    """How good an episode is by its environment, else by its judge, else by its reward; None = unknown."""
    verdicts = (trajectory.facts.verdict, trajectory.judgement)
    scores = (verdict.score for verdict in verdicts if verdict is not None and verdict.score is not None)
    return next(scores, trajectory.reward)


def as_expert(trajectory: Trajectory) -> Trajectory:
    """The episode as an expert's success: without rewards, and without tokens, which are another model's."""
    verdict = trajectory.facts.verdict
    why = UNJUDGED if score_of(trajectory) is None else verdict.why if verdict is not None else ""
    return replace(
        trajectory,
        source="expert",
        steps=tuple(_without_tokens(step) for step in trajectory.steps),
        reward=None,
        judgement=None,
        group="",
        facts=EpisodeFacts(verdict=Judgement(1.0, why=why)),
    )


def _without_tokens(step: Step) -> Step:
    return replace(step, prompt=NO_PROMPT, response_ids=(), logprobs=(), policy_version=None)


SEVERAL = "have the goal of several tasks, and the id of none of them"
ELSEWHERE = "have the goal of a task, but neither its id nor its site"


@dataclass(slots=True)
class Matching:
    """Episodes with the run's own task where it is the same one, the ids of these tasks, and how many only look so."""

    episodes: list[Trajectory] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    unsure: Counter[str] = field(default_factory=Counter)


def as_tasks_of(episodes: Sequence[Trajectory], tasks: Iterable[Task]) -> Matching:
    """The episodes as those of the run's own tasks.

    The same task has the same goal, and the same id (`browsergym/webarena.7` is 7) or else the same site; generated
    sites are told apart by their seeds. An episode that fits several tasks, or whose goal is that of a task elsewhere,
    is of none of them, and counted; where one of them is held out, it is of that one, so that nothing of it is learned.
    An episode of another task whose id is that of one of `tasks`, or of an episode with another goal, gets an id of its
    own: a group compares rollouts of one task.
    """
    by_id: dict[str, Task] = {}
    by_goal: dict[str, list[Task]] = {}
    for task in tasks:
        if by_id.setdefault(task.id, task) is task and task.meta.get("site_seed") is None and task.intent.strip():
            by_goal.setdefault(_words(task.intent), []).append(task)
    goals = {task.id: _words(task.intent) for task in by_id.values()}
    result = Matching()
    for episode in episodes:
        own, words = episode.task, _words(episode.task.intent)
        same = by_id.get(own.id) if goals.get(own.id) == words else None
        if same is None and own.meta.get("site_seed") is None:
            same, doubt = _same(episode, by_goal.get(words, ()))
            result.unsure.update([doubt] if doubt else ())
        if same is not None:
            result.ids.add(same.id)
            result.episodes.append(replace(episode, task=same))
            continue
        if goals.setdefault(own.id, words) != words:
            own = replace(own, id=f"{own.id}#{digest(words)[:8]}")
        result.episodes.append(replace(episode, task=own))
    return result


def _same(episode: Trajectory, tasks: Sequence[Task]) -> tuple[Task | None, str]:
    """Which of the tasks with its goal an episode is of; None with the reason where that cannot be told."""
    own = episode.task
    sites = {*_sites(own), *({_host(episode.steps[0].observation.url)} - {""})}
    named = [task for task in tasks if names_of(own.id) & names_of(task.id)]
    near = named or [task for task in tasks if _sites(task) & sites]
    if len(near) > 1:
        near = [task for task in near if task.start_url == own.start_url] or near
    if len(near) == 1:
        return near[0], ""
    held_out = next((task for task in near or tasks if task.split in HELD_OUT), None)
    if held_out is not None or not tasks:
        return held_out, ""
    return None, SEVERAL if near else ELSEWHERE


def names_of(task_id: str) -> set[str]:
    """What a task may be called by others: `browsergym/webarena.7` is also `webarena.7` and `7`."""
    name = task_id.rpartition("/")[2]
    return {task_id, name, name.partition(".")[2]} - {""}


def _words(goal: str) -> str:
    return " ".join(goal.split())


def _sites(task: Task) -> set[str]:
    """What a task's site is known by: its names, and the host where it starts."""
    return {"+".join(sorted(task.sites)), _host(task.start_url)} - {""}


def _host(address: str) -> str:
    return urlsplit(address).netloc


# --- Sources: where the stores lie.


def stores_of(source: str) -> list[Path]:
    """The trajectory stores that a source means: a file, a folder of files, a run's folder, or a data set of the hub.

    Raises `MissingError` when there is none, and says which stores of a run could be named instead; `CheckpointError`
    for a finished run whose stores are not what it has left.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        return _stores_in(_of_hub(source), source)
    trajectories = path / TRAJECTORIES
    if not trajectories.is_dir():
        return _stores_in(path, source)
    check_records(path, f"{TRAJECTORIES}/")
    stores = [trajectories / f"{name}{SUFFIX}" for name in RUN_STORES]
    present = [store for store in stores if store.is_file()]
    if not present:
        others = ", ".join(file.name for file in sorted(trajectories.glob(f"*{SUFFIX}"))) or "none"
        raise MissingError(
            f"the run {source} has no demonstrations of its own ({', '.join(RUN_STORES)}); name one of the stores in "
            f"its folder trajectories/ ({others}), or bring them together with dynaweb data import run"
        )
    return present


def source_key(source: str) -> str:
    """A hash (20 hex digits) of what the stores of a source hold, wherever they lie."""
    return digest([file_key(path) for path in stores_of(source)])


def _stores_in(folder: Path, source: str) -> list[Path]:
    stores = sorted(folder.rglob(f"*{SUFFIX}"))
    if not stores:
        raise MissingError(f"{source} holds no trajectory store (*{SUFFIX})")
    return stores


def is_hub_name(source: str, *patterns: str) -> bool:
    """Whether a source that is no path here can be a data set of the hub: `owner/name`, and no name of a file."""
    is_file = any(Path(source).match(pattern) for pattern in patterns)
    return source.count("/") == 1 and not source.startswith((".", "/", "~")) and not is_file


@cache
def _of_hub(name: str) -> Path:
    """The folder with the stores of a data set of the hub; downloaded once, then known."""
    if not is_hub_name(name, f"*{SUFFIX}"):
        raise MissingError(f"there is no file or folder {name}; data.demos is a number, a {SUFFIX} file, or a folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=[f"*{SUFFIX}"]))
    except (HfHubHTTPError, OSError, ValueError) as error:
        why = str(error).strip().split("\n")[0]
        raise MissingError(f"there is no file or folder {name}, and no such data set of the hub ({why})") from error
