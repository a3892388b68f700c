"""The page of a replication: what every arm of every benchmark reached, what it cost, its judge and its world model.

Results of a replication are raw results with the axes `benchmark` and `arm` (`examples/replication` makes them). Their
matrix says which arms and seeds belong to it, so that a cell without results is `not run`, never left out. A page of
documentation keeps the tables of one benchmark between marks:

    <!-- results: replication --benchmark miniwob -->
    ...
    <!-- end of results -->

`page` makes a whole page of whatever results there are, and `dynaweb reproduce` renews its tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dynaweb.compare.comparing import Versus, difference_cells, versus_of
from dynaweb.compare.groups import Group
from dynaweb.compare.raw import RawResults, RawRun
from dynaweb.compare.records import MAIN, Episodes, named
from dynaweb.compare.tables import Cell, Column, Table, level_words
from dynaweb.errors import ConfigError, hint
from dynaweb.report.data import measure_words
from dynaweb.stats import Estimate, success_rate

AXES = ("benchmark", "arm")
SFT, LONGER = "SFT", "SFT, longer"
"""The arms that learn from demonstrations alone: where the others start, and the one that was trained longer."""
NOT_RUN = "not run"
COSTS = (
    ("real_steps", "Real steps", 1.0),
    ("tokens_generated", "Generated tokens", 1.0),
    ("seconds", "Minutes", 1 / 60),
)
FIDELITY = ("exact", "element_f1", "changed_f1", "next_action", "invalid", "rules")
"""The measures of the world model that are told, on sites that it was not fitted on."""
ERRORS = ("false positives", "false negatives")


@dataclass(frozen=True, slots=True)
class ArmResults:
    """An arm of one benchmark: its runs, one a seed, and the arm's name in them; no run where it was not run."""

    label: str
    arm: str
    runs: tuple[RawRun, ...]

    @property
    def group(self) -> Group:
        """The runs as a group."""
        return Group(self.label, tuple(run.record for run in self.runs))

    def played(self, kind: str = "") -> dict[int, Episodes]:
        """Outcomes by seed and episode; only of tasks of a kind, where it is given."""
        outcomes: dict[int, Episodes] = {}
        for run in self.runs:
            episodes = run.episodes.get(self._name(run), ())
            whole = named((one.success for one in episodes), [one.task for one in episodes if one.task])
            kinds = [one.kind for one in episodes]
            chosen = [pair for pair, own in zip(whole.items(), kinds, strict=True) if kind in ("", own)]
            outcomes[run.seed] = dict(chosen)
        return outcomes

    def success(self, kind: str = "") -> Estimate:
        """Success over all seeds and episodes, of a kind of tasks where it is given."""
        return success_rate([list(episodes.values()) for episodes in self.played(kind).values()])

    def judged(self, error: str) -> Estimate | None:
        """One of `ERRORS` of the judge on the arm's real episodes; None where no judge was asked."""
        return self.group.judged(self._name(self.runs[0]), error) if self.runs else None

    def _name(self, run: RawRun) -> str:
        arm = run.record.arm(self.arm)
        return arm.name if arm is not None else ""


def is_replication(raw: RawResults) -> bool:
    """Whether these are results of a replication."""
    return raw.axes == AXES


def benchmarks(raw: RawResults) -> list[str]:
    """The benchmarks that belong to the replication, run or not."""
    return _axis(raw, "benchmark")


def arms_of(raw: RawResults, benchmark: str) -> list[ArmResults]:
    """Every arm that belongs to a benchmark, run or not, SFT first. Raises `ConfigError` for no such benchmark."""
    if benchmark not in benchmarks(raw):
        raise ConfigError(f"{raw.name} has no benchmark {benchmark!r}; {hint(benchmark, benchmarks(raw))}")
    here = [run for run in raw.runs if dict(run.labels)["benchmark"] == benchmark]
    # All arms start from the same SFT: one run of each seed tells how it does.
    starts = {run.seed: run for run in reversed(here) if run.record.arm("sft") is not None}
    sft = ArmResults(SFT, "sft", tuple(starts[seed] for seed in sorted(starts)))
    return [sft, *(_arm(here, label) for label in _axis(raw, "arm"))]


def _arm(runs: Iterable[RawRun], label: str) -> ArmResults:
    of_arm = sorted((run for run in runs if dict(run.labels)["arm"] == label), key=lambda run: run.seed)
    return ArmResults(label, "sft-long" if label == LONGER else MAIN, tuple(of_arm))


def _axis(raw: RawResults, name: str) -> list[str]:
    listed = [str(value) for value in raw.matrix.get("axes", {}).get(name, ())]
    return list(dict.fromkeys([*listed, *(dict(run.labels)[name] for run in raw.runs)]))


def reference(arms: Sequence[ArmResults]) -> ArmResults | None:
    """The best arm that learned from demonstrations alone, of those with all seeds that any of them has."""
    controls = [arm for arm in arms if arm.label in (SFT, LONGER) and arm.success().value is not None]
    most = max((len(arm.runs) for arm in controls), default=0)
    return max(
        (arm for arm in controls if len(arm.runs) == most), key=lambda arm: arm.success().value or 0, default=None
    )


def tables(raw: RawResults, benchmark: str) -> list[Table]:
    """The tables of one benchmark: success, costs, and where there are any, the judge and the world model."""
    arms = arms_of(raw, benchmark)
    return [
        _success(raw, arms, benchmark),
        _costs(raw, arms, benchmark),
        *_judges(arms, benchmark),
        *_worlds(arms, benchmark),
    ]


def _success(raw: RawResults, arms: Sequence[ArmResults], benchmark: str) -> Table:
    best = reference(arms)
    kinds = sorted({one.kind for arm in arms for run in arm.runs for of in run.episodes.values() for one in of} - {""})
    # Where every task is a kind of its own, kinds are no groups.
    kinds = kinds if len(kinds) in (2, 3) else []
    columns = [
        Column("arm"),
        Column("seeds", "count"),
        Column("Success %", "estimate", 100, ".1f"),
        Column("n", "count"),
    ]
    for kind in kinds:
        columns += [Column(f"{kind}, %", "estimate", 100, ".1f"), Column("n", "count")]
    name = best.label if best is not None else "best SFT"
    columns += [Column(f"against {name}", "difference"), Column("on", "count")]
    n_compared = sum(bool(arm.runs) and arm is not best for arm in arms)
    rows: list[tuple[Cell, ...]] = []
    for arm in arms:
        if not arm.runs:
            rows.append((arm.label, NOT_RUN, *["-"] * (len(columns) - 2)))
            continue
        cells: list[Cell] = [arm.label, _seeds(raw, arm)]
        for kind in ("", *kinds):
            success = arm.success(kind)
            cells += [success, success.n]
        against = _against(best, arm, n_compared)
        n = against.paired.difference.n if against is not None and against.paired is not None else "-"
        rows.append((*cells, *difference_cells(arm is best, against, False), n))
    note = (
        "Success in percent of all held-out episodes with its 95 % interval and n; differences in points on the "
        f"episodes that both played, as many as stand under `on`{level_words(n_compared)}."
    )
    return Table(f"{benchmark}: success", tuple(columns), tuple(rows), (note,), f"{benchmark}-success")


def _against(best: ArmResults | None, arm: ArmResults, n_compared: int) -> Versus | None:
    return versus_of(best.played(), arm.played(), n_compared) if best is not None and arm is not best else None


def _seeds(raw: RawResults, arm: ArmResults) -> str:
    wanted = len(raw.matrix.get("seeds", ())) or len(arm.runs)
    return str(len(arm.runs)) if len(arm.runs) >= wanted else f"{len(arm.runs)}/{wanted}"


def _costs(raw: RawResults, arms: Sequence[ArmResults], benchmark: str) -> Table:
    columns = [Column("arm"), Column("seeds", "count")]
    columns += [Column(head, "estimate", scale, ",.0f" if scale == 1 else ".1f") for _, head, scale in COSTS]
    rows = []
    for arm in arms[1:]:  # what SFT alone costs, no run tells
        values = [arm.group.cost(name) for name, _, _ in COSTS] if arm.runs else []
        cells: list[Cell] = [value if value is not None else "-" for value in values] or ["-"] * len(COSTS)
        rows.append((arm.label, _seeds(raw, arm) if arm.runs else NOT_RUN, *cells))
    note = (
        "Of whole runs, the evaluation of SFT included, means over runs: steps in the real environment before the "
        "evaluation, tokens that models wrote, and minutes of all stages on the machine that they were made on, which "
        "several runs shared. A stage that runs share counts for each of them."
    )
    return Table(f"{benchmark}: costs", tuple(columns), tuple(rows), (note,), f"{benchmark}-costs")


def _judges(arms: Sequence[ArmResults], benchmark: str) -> list[Table]:
    columns = [Column("arm")]
    for error in ERRORS:
        columns += [Column(f"{error.capitalize()} %", "estimate", 100, ".1f"), Column("n", "count")]
    rows = []
    for arm in arms:
        errors = [arm.judged(error) for error in ERRORS]
        if any(one is not None for one in errors):
            cells = [cell for one in errors for cell in ((one, one.n) if one is not None else ("-", "-"))]
            rows.append((arm.label, *cells))
    note = (
        "The judge of each run against the environment's verdict on the arm's held-out episodes: the share of failures "
        "that it calls successes, and of successes that it rejects; n are the episodes that it was asked about."
    )
    return [Table(f"{benchmark}: judge", tuple(columns), tuple(rows), (note,), f"{benchmark}-judge")] if rows else []


def _worlds(arms: Sequence[ArmResults], benchmark: str) -> list[Table]:
    rows, columns = [], [Column("arm")]
    for name in FIDELITY:
        columns += [Column(measure_words(name), "estimate", 1, ".3f"), Column("n", "count")]
    for arm in arms[1:]:
        measures = [arm.group.measure(name) for name in FIDELITY] if arm.runs else []
        if any(one is not None for one in measures):
            cells = [cell for one in measures for cell in ((one, one.n) if one is not None else ("-", "-"))]
            rows.append((arm.label, *cells))
    note = (
        "The world model of each run on real steps of tasks that it was not fitted on, over the questions of all runs, "
        "which n counts: means with their 95 % interval; invalid answers are no page."
    )
    return (
        [Table(f"{benchmark}: world model", tuple(columns), tuple(rows), (note,), f"{benchmark}-world-model")]
        if rows
        else []
    )


def page(raw: RawResults) -> str:
    """A whole page in Markdown: for each benchmark marks, between which `reproduce.filled` puts the tables."""
    lines = [
        f"# {raw.title or 'Replication'}",
        "",
        "Recipes, matrices and the command that made these runs are in "
        "[`examples/replication`](../examples/replication/README.md); the raw results are one row an episode in "
        f"`results/{raw.name}.jsonl.gz`. The tables are made of them:",
        "",
        "<!-- needs the repository -->",
        "```bash",
        f"dynaweb reproduce {raw.name} --no-figures --write docs/{raw.name}.md",
        "```",
        "",
    ]
    for benchmark in benchmarks(raw):
        marks = [f"<!-- results: {raw.name} --benchmark {benchmark} -->", "<!-- end of results -->"]
        lines += [f"## {benchmark}", "", *marks, ""]
    return "\n".join(lines)
