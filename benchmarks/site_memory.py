"""What a memory of the site gives, on the sites that runs have explored, from the folders of the runs:

    python benchmarks/site_memory.py runs/RUN... --held-out --docs docs/world-models.md

Every explored transition that needs a model is predicted, and every explored episode followed open-loop, by each run's
fitted world model and by the base model as it is, each with and without a memory. The memory holds what the run's
dreams remember, exploration and demonstrations, but for the whole episode of the question: what only this episode has
seen cannot be remembered. `--held-out` asks only about sites that the run kept out of fitting (`wm_fit.holdout`);
without it the fitted model was fitted on most of these very questions. Questions of all runs are pooled. `--docs FILE`
puts the table between two marks of a Markdown file. All values have n and their 95 % interval; intervals take questions
as independent, though those of one site are not quite.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.config import resolve
from dynaweb.data.store import TrajectoryStore
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.runs import StageCache
from dynaweb.stages.drift import by_step
from dynaweb.stages.world_model import held_out_sites, remembering, sites_of, to_predict
from dynaweb.stats import wilson
from dynaweb.worldmodels.fidelity import Graded, Probe, estimates, grade, predictions, transitions_of
from dynaweb.worldmodels.memory import without_episode
from dynaweb.worldmodels.open_loop import Chain, chains, drift

if TYPE_CHECKING:
    from dynaweb.protocols import Environment
    from dynaweb.types import Transition

MARKS = "<!-- measured: benchmarks/site_memory.py -->", "<!-- end of the memory's table -->"
"""Between these lines of a Markdown file the table is put."""
ARMS: Mapping[str, tuple[bool, str]] = {
    "base": (False, "none"),
    "fitted": (True, "none"),
    "base, pages": (False, "pages"),
    "fitted, pages": (True, "pages"),
    "fitted, deltas": (True, "deltas"),
}
"""Label of each arm: whether its weights are those that the run fitted, and its `dream.memory`."""
MEASURES = ("exact", "element_f1", "changed_f1", "url", "page_kind", "invalid", "tokens")


@dataclass(slots=True)
class Found:
    """What one arm's answers were worth, over all runs so far."""

    one_step: list[Graded] = field(default_factory=list)
    recalled: int = 0
    walks: list[list[Graded]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """What one run is asked: its known transitions, those to predict, and the episodes to follow."""

    folder: Path
    seed: int
    episodes: tuple[int, int]
    """How many were explored, and how many demonstrated."""
    sites: set[str]
    known: Sequence[Transition]
    transitions: Sequence[Transition]
    walks: Sequence[Chain]


def questions(folder: Path, count: int, episodes: int, *, held_out: bool) -> Asked:
    """A sample of what a run has explored, `count` transitions and `episodes` walks at most."""
    explored, demos = (
        list(TrajectoryStore(folder / "trajectories" / f"{name}.jsonl.gz")) for name in ("explore", "demos")
    )
    ctx = context(folder, "none")
    sites = held_out_sites(ctx, explored) if held_out else sites_of(explored)
    seen = transitions_of([one for one in explored if one.task.site_key in sites])
    asked, walks = to_predict(seen), [chain for chain in chains(seen, longest=8) if len(chain) > 1]
    for some, most in ((asked, count), (walks, episodes)):
        random.Random(0).shuffle(some)
        del some[most:]
    known = [*transitions_of(explored), *transitions_of(demos)]
    return Asked(folder, ctx.recipe.run.seed, (len(explored), len(demos)), sites, known, asked, walks)


def context(folder: Path, memory: str) -> RunContext:
    """The run of a folder, with another `dream.memory`."""
    recipe = resolve(folder / "recipe.toml", overrides=[f"dream.memory={memory}"])
    return RunContext(recipe, current(), StageCache(notify=current().notify))


async def measure(asked: Asked, found: Found, *, fitted: bool, memory: str) -> None:
    """Ask one arm about one run and add its grades to what was found."""
    ctx = context(asked.folder, memory)
    model = ctx.models.load(asked.folder / "checkpoints" / "world-model") if fitted else ctx.models.base
    greedy, dreaming = (
        remembering(ctx, ctx.models.world_model(model, temperature=heat, held_out=frozenset()), asked.known)
        for heat in (0.0, ctx.recipe.dream.temperature)
    )
    probes = [Probe(one) for one in asked.transitions]
    answers = await predictions(greedy, probes, seed=ctx.seed("fidelity"))
    found.one_step += [grade(probe, answer) for probe, answer in zip(probes, answers, strict=True)]
    found.recalled += sum(answer.recalled for answer in answers)

    def dreams(chain: Chain) -> Environment:
        return ctx.envs.dream(without_episode(dreaming, chain[0]), lambda task: chain[0].observation)()

    found.walks += await drift(dreams, asked.walks, seed=ctx.seed("drift"), live=ctx.models.lockstep.episode)


def table(name: str, runs: Sequence[Asked], *, held_out: bool) -> list[str]:
    """Lines of Markdown for all runs with one world model."""
    arms = {label: Found() for label in ARMS}
    for asked in runs:
        for label, (fitted, memory) in ARMS.items():
            asyncio.run(measure(asked, arms[label], fitted=fitted, memory=memory))
            sys.stderr.write(f"{asked.folder.name}, {label}: exact {estimates(arms[label].one_step)['exact']} so far\n")
    explored, demonstrated = (sum(asked.episodes[i] for asked in runs) for i in (0, 1))
    asked_about = sum(len(asked.transitions) for asked in runs)
    followed = sum(len(asked.walks) for asked in runs)
    sites = sum(len(asked.sites) for asked in runs)
    seeds = ", ".join(str(asked.seed) for asked in runs)
    which = " that nothing was fitted on" if held_out else ""
    lines = [
        f"World model `{name}`, runs with seed {seeds}: {explored} explored episodes and {demonstrated} "
        f"demonstrations; {asked_about} questions, and {followed} episodes followed open-loop, "
        f"on {sites} sites{which}.",
        "",
    ]
    lines += [row(["measure", *arms]), row(["---"] * (1 + len(arms)))]
    one_step = [
        estimates(found.one_step) | {"remembered": wilson(found.recalled, len(found.one_step))}
        for found in arms.values()
    ]
    lines += [row([measure, *(str(values[measure]) for values in one_step)]) for measure in ("remembered", *MEASURES)]
    lines += ["", "Open loop, element F1 by step (alive):", "", row(["step", *arms]), row(["---"] * (1 + len(arms)))]
    horizon = max(len(chain) for asked in runs for chain in asked.walks)
    drifted = [[estimates(step) for step in by_step(found.walks, horizon)] for found in arms.values()]
    for at in range(len(drifted[0])):
        cells = [f"{steps[at]['element_f1']} ({steps[at]['alive'].text(2)})" for steps in drifted]
        lines.append(row([str(at + 1), *cells]))
    return [*lines, ""]


def row(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """A table for each world model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs that fitted a world model")
    parser.add_argument(
        "--questions", type=int, default=1000, help="explored transitions of a run that are asked, at most"
    )
    parser.add_argument("--episodes", type=int, default=400, help="explored episodes of a run to follow, at most")
    parser.add_argument("--held-out", action="store_true", help="only sites that the run kept out of fitting")
    parser.add_argument("--docs", type=Path, help="a Markdown file to put the table into")
    given = parser.parse_args()
    models: dict[str, list[Asked]] = {}
    for folder in given.runs:
        asked = questions(folder, given.questions, given.episodes, held_out=given.held_out)
        models.setdefault(resolve(folder / "recipe.toml").wm.name, []).append(asked)
    lines = [line for name, runs in models.items() for line in table(name, runs, held_out=given.held_out)]
    if given.docs:
        before, mark, rest = given.docs.read_text(encoding="utf-8").partition(MARKS[0])
        _, end, after = rest.partition(MARKS[1])
        if not mark or not end:
            raise SystemExit(f"{given.docs} lacks the lines {MARKS[0]!r} and {MARKS[1]!r}")
        body = "\n".join(lines).strip()
        given.docs.write_text(f"{before}{mark}\n\n{body}\n\n{end}{after}", encoding="utf-8")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
