"""Raw results of matrices that nobody ran: outcomes by a rate, paired by task, for tests of tables and figures."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from dynaweb.compare.raw import Episode, RawResults, RawRun
from dynaweb.compare.records import RunRecord, named
from dynaweb.matrix.plan import Matrix
from dynaweb.report.data import Arm, Curve, Measure, ReportData, Stage
from dynaweb.stats import SCORE, estimate

Rate = Callable[[Mapping[str, Any]], float]
WHERE = "held-out tasks of at most 5 best-case steps on unseen test sites"


def raw_matrix(
    axes: Mapping[str, Sequence[Any]], rate: Rate, *, name: str = "made", seeds: Sequence[int] = (0, 1, 2), n: int = 60
) -> RawResults:
    """A grid whose main arm solves `rate(values)` of `n` tasks a seed; the first SFT solves half of them everywhere."""
    runs = [
        _run(dict(zip(axes, values, strict=True)), seed, rate, n)
        for seed in seeds
        for values in product(*axes.values())
    ]
    table = {axis: list(values) for axis, values in axes.items()}
    matrix = Matrix(name=name, description=f"Matrix of {name}", seeds=tuple(seeds), axes=table)
    return RawResults(
        name, tuple(runs), tuple(axes), matrix.description, "", matrix.model_dump(mode="json", by_alias=True)
    )


def _run(values: Mapping[str, Any], seed: int, rate: Rate, n: int) -> RawRun:
    labels = tuple((axis, str(value)) for axis, value in values.items())
    tasks, rng = random.Random(seed), random.Random(repr((labels, seed)))
    difficulty = [tasks.random() for _ in range(n)]
    solved = {"sft": 0.5, "dynaweb": rate(values)}
    episodes = {
        arm: [Episode(f"t{seed}-{at}", float(one < share), 3, 20) for at, one in enumerate(difficulty)]
        for arm, share in solved.items()
    }
    arms = (
        Arm("sft", "SFT, 30 updates", "sft", (tuple(one.success for one in episodes["sft"]),)),
        Arm("dynaweb", "DynaWeb", "main", (tuple(one.success for one in episodes["dynaweb"]),)),
    )
    f1 = tuple(rng.uniform(0.5, 1.0) for _ in range(20))
    metrics = {"reward": 0.5, "steps": 100.0, "policy_tokens": 900.0, "world_model_tokens": 4000.0}
    data = ReportData(
        title="made",
        arms=arms,
        stages=(
            Stage("rl", "done", cost={"browser_steps": 1000.0 + 10 * seed, "tokens_generated": 5e4, "seconds": 60.0}),
        ),
        fidelity=(Measure("Element F1", estimate(SCORE, f1), "", "element_f1", f1),),
        curves=tuple(
            Curve("rl", metric, tuple((at + 1, value + 0.01 * at) for at in range(8)))
            for metric, value in metrics.items()
        ),
        episodes_are=WHERE,
        versions={"dynaweb": "0.2.0"},
        seed=seed,
    )
    played = {
        arm: named((one.success for one in of_arm), [one.task for one in of_arm]) for arm, of_arm in episodes.items()
    }
    record = RunRecord(Path("made"), seed, {}, data, played)
    return RawRun("-".join([*(value for _, value in labels), str(seed)]), labels, record, {}, episodes)
