"""What a judge is worth that was fitted in other ways, from the folders of runs that fitted one:

    python benchmarks/judge_fits.py runs/RUN... --fit "" --fit "steps=40" --fit "steps=40 contrast=true" --together

Each `--fit` holds settings of `[judge_fit]` and, with their section, others (`reward.soft=true`); "" is the run's own
recipe. For every run the judge is fitted again on the run's graded episodes and demonstrations (`--together`: on those
of all runs) and asked about the test episodes that the run evaluated, with the environment's verdict: those of SFT, on
whose like it was fitted, and those of the policy that learned from a judge, which knows how to please it. Counts of all
runs are pooled; every rate has its n and 95 % interval. Nothing is played; a GPU makes it quick.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynaweb.config import resolve
from dynaweb.config.keys import digest, file_key
from dynaweb.data.store import TrajectoryStore
from dynaweb.judges.audit import Confusion, confusion
from dynaweb.judges.calibration import auc
from dynaweb.judges.reward import SUCCESS, judge_all, reached_model, success_of
from dynaweb.pipeline.context import RunContext
from dynaweb.pipeline.judge import judge_named
from dynaweb.plugin.registry import current
from dynaweb.runs import StageCache
from dynaweb.stages.judge_fit import fit_judge
from dynaweb.stats import Estimate, wilson
from dynaweb.types import Trajectory

POLICIES: Mapping[str, str] = {"SFT": "eval-sft", "trained": "eval-dynaweb"}
"""The test episodes that judges are asked about, and their stores."""
COLUMNS = ("fit", "of", "accepts failures", "rejects successes", "AUC")


@dataclass(slots=True)
class Found:
    """What was asked about the episodes of one kind of policy, over all runs so far."""

    counts: list[Confusion] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    labels: list[bool] = field(default_factory=list)

    def add(self, judged: Sequence[Trajectory]) -> None:
        """Count decisions and keep probabilities."""
        self.counts.append(confusion("", judged))
        for one in judged:
            real, said = success_of(one), one.judgement
            if real is not None and said is not None and said.probability is not None and reached_model(one):
                self.scores.append(said.probability)
                self.labels.append(real >= SUCCESS)

    def cells(self) -> list[str]:
        """Rates of all runs: failures accepted, successes rejected, area under the ROC curve."""

        def rate(wrong: str, right: str) -> Estimate:
            bad, good = (sum(getattr(one, name) for one in self.counts) for name in (wrong, right))
            return wilson(bad, bad + good)

        shares = rate("false_positive", "true_negative"), rate("false_negative", "true_positive")
        return [str(one) for one in (*shares, auc(self.scores, self.labels))]


def store(folder: Path, name: str) -> list[Trajectory]:
    """The episodes of a run's store, none where it has none."""
    path = folder / "trajectories" / f"{name}.jsonl.gz"
    return list(TrajectoryStore(path)) if path.is_file() else []


def sources(folder: Path) -> list[Path]:
    """The stores that the judge of a run is fitted on."""
    return [folder / "trajectories" / f"{name}.jsonl.gz" for name in ("graded", "demos")]


def learned_from(folder: Path) -> list[Trajectory]:
    """What the judge of a run is fitted on: graded episodes and demonstrations."""
    graded = store(folder, "graded")
    if not graded:
        raise SystemExit(f"{folder} holds no graded episodes; name runs with a judge that is fitted (--reward orm)")
    return [*graded, *store(folder, "demos")]


async def measure(
    folder: Path, words: Sequence[str], fitted: Mapping[Path, Sequence[Trajectory]], found: Mapping[str, Found]
) -> None:
    """Fit a judge anew for one run, on episodes of these runs, and ask it about the run's test episodes."""
    sets = [word if "." in word.partition("=")[0] else f"judge_fit.{word}" for word in words]
    ctx = RunContext(resolve(folder / "recipe.toml", overrides=sets), current(), StageCache(notify=current().notify))
    try:
        # Runs of one recipe have the same demonstrations.
        shared = {
            one.task.id if one.source == "expert" else (run, one.id): one for run, e in fitted.items() for one in e
        }
        made_of = [file_key(path) for run in fitted for path in sources(run)]
        await fit_judge(ctx, list(shared.values()), upstream={"episodes": digest(made_of)})
        model = ctx.models.base
        name, config = ctx.recipe.reward.name, ctx.recipe.reward.config
        judge = judge_named(ctx, name, config, ctx.models.engine(model), model.format)
        for policy, one in POLICIES.items():
            if asked := store(folder, one):
                found[policy].add(await judge_all(judge, asked))
    finally:
        await ctx.close()


def main() -> None:
    """One row for each way to fit and each policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs that fitted a judge")
    parser.add_argument("--fit", action="append", required=True, help='settings, such as "steps=40 contrast=true"')
    parser.add_argument("--together", action="store_true", help="fit on the episodes of all runs named")
    given = parser.parse_args()
    own = {folder: learned_from(folder) for folder in given.runs}
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    for fit in given.fit:
        found = {policy: Found() for policy in POLICIES}
        for folder, episodes in own.items():
            asyncio.run(measure(folder, shlex.split(fit), own if given.together else {folder: episodes}, found))
            sys.stderr.write(f"{folder.name}, {fit or 'as it is'}: {found['trained'].cells()}\n")
        lines += [f"| {fit or 'as it is'} | {policy} | {' | '.join(one.cells())} |" for policy, one in found.items()]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
