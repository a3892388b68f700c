"""WebRL's self-evolving curriculum: each phase learns on tasks made of those that the phase before has failed.

New tasks are kept when the critic's chance of success on their first page lies in a band (by default 0.05 to 0.75:
neither hopeless nor known), as far as there is a critic. Where a step of this leaves nothing, the next best is taken
and said aloud: without failed tasks all tasks of the phase count as failed; when no new task lies in the band, those
nearest to it are kept; when there is no new task at all, the failed ones are played again.

A new task has no recorded first page. Where one is needed (the critic reads it, dreams start from it), the task is
opened once in the real environment.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynaweb import events
from dynaweb.config.decisive import decisive
from dynaweb.loop.beside import Phase, critic_left, parts_of
from dynaweb.loop.checks import make_optimizer
from dynaweb.loop.demos import save_episodes
from dynaweb.loop.openings import as_opened, open_first_pages, recorded_starts
from dynaweb.loop.proposing import Proposals, by_environment, by_server, chosen_generator, counted
from dynaweb.loop.tasks import StartPages
from dynaweb.protocols import MakesVariants, TokenRow
from dynaweb.runs import write_json
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.backends.critic import Critic
    from dynaweb.loop.ingredients import Ingredients, Mode
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.policy.formats import PromptFormat
    from dynaweb.runs import Stage

TASKS, WHY = "tasks.json", "curriculum.json"
PARTS = "phases.json"
SUCCESS = 0.5

_told = logging.getLogger("dynaweb.phases")
_told.setLevel(logging.INFO)


async def in_phases(ws: Workspace, given: Ingredients, mode: Mode) -> Made:
    """RL in `phases.count` stages, each from the policy of the one before; the last one's result."""
    from dynaweb.loop.rl import reinforce

    if ws.recipe.phases.count == 1:
        return await reinforce(ws, given, mode=mode)
    chosen_generator(ws, ws.recipe.phases)
    policy, parts = given.sft, list[dict[str, Any]]()
    before: Made | None = None
    for number in range(1, ws.recipe.phases.count + 1):
        tasks = await evolve(ws, given, before, number) if before is not None else None
        phase = Phase(number, before, tasks)
        parts.append(parts_of(phase, policy))
        _tell(ws, parts)
        before = policy = await reinforce(ws, replace(given, sft=policy, phase=phase), mode=mode)
        ws.keep(before, f"phase-{number}", episodes_as=f"phase-{number}")
    return policy


def _tell(ws: Workspace, parts: Sequence[dict[str, Any]]) -> None:
    """Say which checkpoint plays which part, and write it into the run folder."""
    _told.info("%s", ", ".join(f"{what}: {which}" for what, which in parts[-1].items()))
    if ws.folder is not None:
        write_json(ws.folder.path / PARTS, list(parts))


async def evolve(ws: Workspace, given: Ingredients, before: Made, number: int) -> Made:
    """Stage `curriculum`: the tasks of phase `number`, made of what the phase `before` failed."""

    async def body(stage: Stage) -> None:
        played = before.episodes()
        wanted = ws.recipe.phases.tasks or ws.recipe.rl.updates * ws.recipe.rl.tasks
        failed, notes = failed_tasks(played)
        made = await _proposals(ws, failed, played, wanted * ws.recipe.phases.proposals, number)
        fresh = new_tasks(made.tasks, [t.task for t in played])
        usable, count = fresh, 0
        valuer, pages = valuer_of(ws, before), recorded_starts(given)
        pages.add(played)
        if valuer is not None or ws.dreams:
            usable, count = await opened(ws, fresh if valuer is not None else fresh[:wanted], pages, notes)
        values = valuer.of(usable, pages) if valuer is not None else None
        kept, more = in_band(usable, values, ws.recipe.phases.value, wanted)
        if not kept:
            kept, more = list(failed), ["no new task came out: the failed ones are played again"]
        counts = {"failed": len(failed), "proposed": len(made.tasks), "new": len(fresh), "kept": len(kept)}
        counts |= {"infeasible": made.infeasible, "unreadable": made.unreadable, "pages opened": count}
        notes += more
        _write(stage.folder, kept, counts, notes, values)
        if ws.dreams:
            save_episodes(stage, as_opened(kept, pages))
        for note in notes:
            ws.tell(events.Failure(where=f"curriculum of phase {number}", error=note))
        _told.info("tasks of phase %d: %s", number, counted(counts))

    told = ws.recipe.settings("run.seed", "phases")
    return await ws.stage("curriculum", curriculum_key(ws, before, number), body, settings=told)


def curriculum_key(ws: Workspace, before: Made, number: int) -> str:
    """The cache key of the stage. How many phases there are is not in it, nor how a server is asked."""
    parts = (*(f"phases.{name}" for name in ("generator", "tasks", "proposals", "value")), "rl.updates", "rl.tasks")
    server = decisive(ws.recipe.phases.server)
    pages = {"pages": "kept"} if ws.dreams else {}
    return ws.key(*parts, "opt", server=server, before=before.key, number=number, tasks=ws.task_key, **pages)


def failed_tasks(played: Sequence[Trajectory]) -> tuple[list[Task], list[str]]:
    """Tasks whose graded rollouts failed more often than not, in their order, and what had to be put up with."""
    rewards: dict[str, list[float]] = {}
    tasks: dict[str, Task] = {}
    for t in played:
        if t.reward is not None and t.source != "expert":
            tasks.setdefault(t.task.id, t.task)
            rewards.setdefault(t.task.id, []).append(t.reward)
    failed = [task for name, task in tasks.items() if sum(rewards[name]) / len(rewards[name]) < SUCCESS]
    if failed:
        return failed, []
    return list(tasks.values()), ["no task of the phase before failed: all of its tasks are varied"]


async def _proposals(
    ws: Workspace, failed: Sequence[Task], played: Sequence[Trajectory], count: int, number: int
) -> Proposals:
    if chosen_generator(ws, ws.recipe.phases) == "server":
        return await by_server(ws, failed, played, count=count, phase=number)
    source = cast("MakesVariants", ws.source)
    longest = ws.recipe.data.max_best_steps
    made = by_environment(source, failed, count=count, seed=ws.seed("curriculum", number))
    return replace(made, tasks=[task for task in made.tasks if task.best_steps is None or task.best_steps <= longest])


def new_tasks(proposed: Sequence[Task], known: Sequence[Task]) -> list[Task]:
    """Proposals without what was played already or is proposed twice: the same words on the same site."""
    seen = {_same(task) for task in known}
    return [task for task in proposed if _same(task) not in seen and not seen.add(_same(task))]  # type: ignore[func-returns-value]


def _same(task: Task) -> tuple[str, str]:
    return " ".join(task.intent.lower().split()), str(task.meta.get("site_seed", task.start_url))


@dataclass(frozen=True, slots=True)
class Valuer:
    """The critic that a phase left, with the policy whose pages it reads."""

    critic: Critic
    format: PromptFormat
    value: Callable[[Any], Any]

    def of(self, tasks: Sequence[Task], pages: StartPages) -> list[float]:
        """The chance of success on each task's first page. All pages must be known."""
        rows = []
        for task in tasks:
            page = pages(task)
            assert page is not None
            rows.append(TokenRow(self.format.policy_prompt(task, page, ()), (self.format.stop_ids[0],)))
        return [float(self.value(outputs[0])) for outputs in self.critic.values(rows)] if rows else []


def valuer_of(ws: Workspace, before: Made) -> Valuer | None:
    """The critic of the phase before; None where it left none."""
    from dynaweb.backends.critic import Critic
    from dynaweb.backends.schedule import Schedule
    from dynaweb.credit import wants

    optimizer = make_optimizer(ws)
    spec, value = wants(optimizer).critic, getattr(optimizer, "value", None)
    left = critic_left(before)
    if spec is None or value is None or left is None:
        return None
    model = ws.load(before.model)
    critic = Critic(model.model, spec, Schedule(0.0, 1))
    critic.load(left)
    return Valuer(critic, model.format, value)


async def opened(ws: Workspace, fresh: Sequence[Task], pages: StartPages, notes: list[str]) -> tuple[list[Task], int]:
    """The tasks whose first page is known or could be opened now, and how many pages were opened; adds to `notes`."""
    count = len(await open_first_pages(ws, fresh, pages))
    found = [task for task in fresh if pages(task) is not None]
    if len(found) < len(fresh):
        notes.append(f"{len(fresh) - len(found)} of {len(fresh)} new tasks could not be opened and are left out")
    return found, count


def in_band(
    tasks: Sequence[Task], values: Sequence[float] | None, band: tuple[float, float], wanted: int
) -> tuple[list[Task], list[str]]:
    """At most `wanted` tasks whose value lies in the band; without a critic the first ones.

    Where no value lies in the band, those nearest to it.
    """
    if values is None:
        return list(tasks[:wanted]), ["there is no critic: tasks are not filtered by its value"] if tasks else []
    low, high = band
    kept = [task for task, value in zip(tasks, values, strict=True) if low <= value <= high]
    if kept or not tasks:
        return kept[:wanted], []
    distance = [max(low - value, value - high) for value in values]
    nearest = sorted(range(len(tasks)), key=lambda i: (distance[i], i))[: max(1, min(wanted, len(tasks) // 4))]
    note = f"none of {len(tasks)} new tasks has a value in [{low}, {high}]: the {len(nearest)} nearest to it are kept"
    return [tasks[i] for i in sorted(nearest)], [note]


def _write(
    folder: Path, tasks: Sequence[Task], counts: dict[str, int], notes: Sequence[str], values: Sequence[float] | None
) -> None:
    from dynaweb.data.codec import to_json

    write_json(folder / TASKS, [to_json(task) for task in tasks])
    known = list(values) if values is not None else []
    write_json(folder / WHY, {"counts": counts, "notes": list(notes), "values": known})


def read_tasks(made: Made) -> list[Task]:
    """The tasks that a stage `curriculum` left."""
    from dynaweb.data.codec import from_json

    return [from_json(data) for data in json.loads((made.folder / TASKS).read_text(encoding="utf-8"))]
