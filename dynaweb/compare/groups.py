"""Runs with equal settings but for the seed, as one group; what makes groups different, and how they are called.

A group is called by the settings in which it differs from the others, as in `opt=gspo, wm=delta`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dynaweb.compare.records import Episodes, RunRecord
from dynaweb.config.labels import Labels, labels_text
from dynaweb.config.resolving import FLAGS
from dynaweb.runs.folder import NO_RESULT
from dynaweb.stats import COUNT, PROPORTION, Estimate, Outcomes, estimate, over_seeds, success_rate

FREE = (*NO_RESULT, "run.seed")
"""Settings by which runs of one group may differ."""


NAMED = 3
"""More settings than this a name of a group has only where fewer do not tell the groups apart."""
ASIDE = ("controls.", "eval.")
"""Settings of what a run is measured with: they name a group only where nothing else tells it from another."""
VALUE = 32
"""Characters of a value in a name."""
SHORT = {path: flag for flag, path in FLAGS.items()}


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ in their seed only; `label` is how it is called, `labels` the settings in it.

    `copies` are further runs of the same settings and seed, which would say the same a second time: nothing counts
    them.
    """

    label: str
    runs: tuple[RunRecord, ...]
    copies: tuple[RunRecord, ...] = ()
    labels: Labels = ()

    def by_seed(self, arm: str, called: str = "") -> dict[int, Episodes]:
        """Outcomes of an arm by seed and episode; only of the runs that call it so, where that is said."""
        return {
            run.seed: played for run in self.runs if (played := run.played(arm)) and called in ("", _called(run, arm))
        }

    def success(self, arm: str, called: str = "") -> Estimate:
        """Success over all seeds and episodes."""
        return success_rate([list(played.values()) for played in self.by_seed(arm, called).values()])

    def measure(self, name: str) -> Estimate | None:
        """A measure of the world model over the questions of all runs, which n counts."""
        from dynaweb.worldmodels.fidelity import kind_of

        measures = [measure for run in self.runs if (measure := run.measured(name)) is not None]
        return over_seeds(kind_of(measures[0].name), [measure.values for measure in measures]) if measures else None

    def cost(self, name: str) -> Estimate | None:
        """One of `records.COSTS`, the mean over runs."""
        costs = [cost for run in self.runs if (cost := run.cost(name)) is not None]
        return estimate(COUNT, costs) if costs else None

    def judged(self, arm: str, kind: str) -> Estimate | None:
        """`false positives` or `false negatives` of the judge on the real episodes of an arm, over all runs."""
        errors = [run.judge[arm][kind] for run in self.runs if arm in run.judge]
        counts = [(round((one.value or 0.0) * one.n), one.n) for one in errors]
        by_seed = [[1.0] * wrong + [0.0] * (n - wrong) for wrong, n in counts]
        return over_seeds(PROPORTION, by_seed) if errors else None

    def arms(self) -> dict[str, str]:
        """Name and label of every arm that all runs have."""
        first = {arm.name: arm.label for arm in self.runs[0].data.arms}
        return {name: label for name, label in first.items() if all(run.arm(name) for run in self.runs)}


def _called(run: RunRecord, arm: str) -> str:
    one = run.arm(arm)
    return "" if one is None else one.label


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs in groups, in the order in which the first of each was given, called by what differs.

    Of runs with the same settings and seed the last one counts.
    """
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        key = repr(sorted((path, repr(value)) for path, value in run.settings.items() if not path.startswith(FREE)))
        groups.setdefault(key, []).append(run)
    plain = [_group(members) for members in groups.values()]
    names = _names(plain)
    return [
        replace(group, label=labels_text(name) or group.label, labels=name)
        for group, name in zip(plain, names, strict=True)
    ]


def _group(members: Sequence[RunRecord]) -> Group:
    counted = tuple({run.seed: run for run in members}.values())
    return Group(_folders(counted), counted, tuple(run for run in members if all(run is not one for one in counted)))


def _folders(members: Sequence[RunRecord]) -> str:
    first = members[0].folder.name or str(members[0].folder)
    return first if len(members) == 1 else f"{first} and {len(members) - 1} more"


def _names(groups: Sequence[Group]) -> list[Labels]:
    """For each group the settings that tell it from all others: those chosen by name first, then by path.

    Few are all named. Of many, those that somebody has set, unless another one splits the groups alike, and those
    without which two groups would be called the same.
    """
    different = {
        path: values
        for path, values in differing(groups).items()
        if not path.startswith(NO_RESULT) and not any(isinstance(value, dict | list | tuple) for value in values)
    }
    # What only some groups have are settings of a plugin, which its name tells.
    everywhere = [path for path, values in different.items() if None not in values]
    runs = [run for group in groups for run in group.runs]
    by_hand = {one.path for run in runs for one in run.data.settings if one.origin.startswith("--")}
    # What somebody has set says more than what a recipe sets beside it.
    ranked = sorted(different, key=lambda path: (path not in SHORT, path not in by_hand, path))
    asides = [path for path in ranked if path.startswith(ASIDE)]
    main = [path for path in ranked if path in everywhere and path not in asides]
    rest = [path for path in ranked if path not in main and path not in asides]
    few = main if len(main) <= NAMED else []
    chosen: list[str] = []
    for path in [*main, *rest, *asides]:
        is_meant = path in by_hand and path not in asides and not any(_alike(different, path, one) for one in chosen)
        if path in few or is_meant or _kinds(different, [*chosen, path]) > _kinds(different, chosen):
            chosen.append(path)
    return [tuple((SHORT.get(path, path), _value(different[path][at])) for path in chosen) for at in range(len(groups))]


def _alike(values: Mapping[str, Sequence[Any]], first: str, second: str) -> bool:
    """Whether two settings split the groups into the same parts."""
    return _kinds(values, [first]) == _kinds(values, [second]) == _kinds(values, [first, second])


def _kinds(values: Mapping[str, Sequence[Any]], paths: Sequence[str]) -> int:
    """How many groups these settings tell apart."""
    return len(set(zip(*(map(repr, values[path]) for path in paths), strict=True))) if paths else 1


def _value(value: Any) -> str:
    text = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= VALUE else f"...{text[3 - VALUE :]}"


def differing(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Settings that are not the same in all groups, by path: the value in each group (None = not there)."""
    settings: list[Mapping[str, Any]] = [group.runs[0].settings for group in groups]
    paths = sorted({path for one in settings for path in one})
    values = {path: [one.get(path) for one in settings] for path in paths if path != "run.seed"}
    return {path: each for path, each in values.items() if any(value != each[0] for value in each)}


def common(
    first: Mapping[int, Episodes], second: Mapping[int, Episodes]
) -> tuple[list[Outcomes], list[Outcomes], list[int]]:
    """Outcomes of the episodes that both played, by seed, in one order; and the seeds."""
    seeds = [seed for seed in first if seed in second]
    pairs = {seed: [name for name in first[seed] if name in second[seed]] for seed in seeds}
    seeds = [seed for seed in seeds if pairs[seed]]
    one = [[first[seed][name] for name in pairs[seed]] for seed in seeds]
    other = [[second[seed][name] for name in pairs[seed]] for seed in seeds]
    return list(one), list(other), seeds
