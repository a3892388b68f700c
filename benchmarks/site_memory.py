"""What a memory of the site gives, on the sites that a run has explored, from the folder of the run:

    python benchmarks/site_memory.py runs/RUN --docs docs/world-models.md

Every explored transition that needs a model is predicted, and every explored episode followed open-loop, by the run's
fitted world model and by the base model as it is, each with and without a memory. The memory holds what the run's
dreams remember, exploration and demonstrations, but for the whole episode of the question: what only this episode has
seen cannot be remembered. The fitted model was fitted on most of these very questions, which helps it with and without
a memory; the base model was not. `--docs FILE` puts the table between two marks of a Markdown file. All values have n
and their 95 % interval; intervals take questions as independent, though those of one site are not quite.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.config import resolve
from dynaweb.data.store import TrajectoryStore
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.runs import StageCache
from dynaweb.stages.drift import by_step
from dynaweb.stages.world_model import remembering, to_predict
from dynaweb.stats import Estimate, wilson
from dynaweb.worldmodels.fidelity import Probe, estimates, grade, predictions, transitions_of
from dynaweb.worldmodels.memory import without_episode
from dynaweb.worldmodels.open_loop import Chain, chains, drift

if TYPE_CHECKING:
    from dynaweb.protocols import Environment
    from dynaweb.types import Transition

MARKS = "<!-- measured: benchmarks/site_memory.py -->", "<!-- end of the memory's table -->"
"""Between these lines of a Markdown file the table is put."""
ARMS: Mapping[str, tuple[bool, str]] = {
    "base, memory": (False, "pages"),
    "base": (False, "none"),
    "fitted, memory": (True, "pages"),
    "fitted": (True, "none"),
}
"""Label of each arm: whether its weights are those that the run fitted, and its `dream.memory`."""
MEASURES = ("exact", "element_f1", "changed_f1", "url", "page_kind", "invalid", "tokens")


async def measured(
    ctx: RunContext, weights: Path | None, known: Sequence[Transition], asked: Sequence[Transition], walks: list[Chain]
) -> tuple[dict[str, Estimate], list[dict[str, Estimate]]]:
    """The measures of one arm: one step, and open-loop by step."""
    model = ctx.models.load(weights) if weights is not None else ctx.models.base
    greedy, dreaming = (
        remembering(ctx, ctx.models.world_model(model, temperature=heat, held_out=frozenset()), known)
        for heat in (0.0, ctx.recipe.dream.temperature)
    )
    probes = [Probe(one) for one in asked]
    answers = await predictions(greedy, probes, seed=ctx.seed("fidelity"))
    one_step = estimates([grade(probe, answer) for probe, answer in zip(probes, answers, strict=True)])
    recalled = sum(answer.recalled for answer in answers)

    def dreams(chain: Chain) -> Environment:
        return ctx.envs.dream(without_episode(dreaming, chain[0]), lambda task: chain[0].observation)()

    graded = await drift(dreams, walks, seed=ctx.seed("drift"), live=ctx.models.lockstep.episode)
    steps = [estimates(step) for step in by_step(graded, max(map(len, walks)))]
    return one_step | {"remembered": wilson(recalled, len(answers))}, steps


def table(folder: Path, questions: int, episodes: int) -> list[str]:
    """Lines of Markdown for one run."""
    explored, demos = (
        list(TrajectoryStore(folder / "trajectories" / f"{name}.jsonl.gz")) for name in ("explore", "demos")
    )
    seen = transitions_of(explored)
    asked, walks = to_predict(seen), [chain for chain in chains(seen, longest=8) if len(chain) > 1]
    for some, most in ((asked, questions), (walks, episodes)):
        random.Random(0).shuffle(some)  # type: ignore[arg-type]
        del some[most:]
    arms: dict[str, tuple[dict[str, Estimate], list[dict[str, Estimate]]]] = {}
    for label, (fitted, memory) in ARMS.items():
        recipe = resolve(folder / "recipe.toml", overrides=[f"dream.memory={memory}"])
        ctx = RunContext(recipe, current(), StageCache(notify=current().notify))
        weights = folder / "checkpoints" / "world-model" if fitted else None
        known = [*seen, *transitions_of(demos)]
        arms[label] = asyncio.run(measured(ctx, weights, known, asked, walks))
        one_step, steps = arms[label]
        drifted = ", ".join(str(step["element_f1"].value) for step in steps)
        sys.stderr.write(f"{folder.name}, {label}: exact {one_step['exact']}, element F1 by step {drifted}\n")
    sites = len({one.task.site_key for one in explored})
    lines = [
        f"World model `{recipe.wm.name}` of a run with seed {recipe.run.seed}: {len(explored)} explored episodes and "
        f"{len(demos)} demonstrations on {sites} generated sites, {len(asked)} questions, {len(walks)} episodes "
        "followed open-loop.",
        "",
        row(["measure", *arms]),
        row(["---"] * (1 + len(arms))),
    ]
    lines += [row([name, *(str(one[name]) for one, _ in arms.values())]) for name in ("remembered", *MEASURES)]
    lines += ["", "Open loop, element F1 by step (alive):", "", row(["step", *arms]), row(["---"] * (1 + len(arms)))]
    for at in range(max(len(steps) for _, steps in arms.values())):
        cells = [f"{steps[at]['element_f1']} ({steps[at]['alive'].text(2)})" for _, steps in arms.values()]
        lines.append(row([str(at + 1), *cells]))
    return [*lines, ""]


def row(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """A table for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs that fitted a world model")
    parser.add_argument("--questions", type=int, default=1000, help="explored transitions that are asked, at most")
    parser.add_argument("--episodes", type=int, default=400, help="explored episodes that are followed, at most")
    parser.add_argument("--docs", type=Path, help="a Markdown file to put the table into")
    given = parser.parse_args()
    lines = [line for folder in given.runs for line in table(folder, given.questions, given.episodes)]
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
