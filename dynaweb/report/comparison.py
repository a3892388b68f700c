"""Runs side by side: success with intervals and paired differences, learning curves overlaid, paired episodes.

The page is drawn from plain values, which `dynaweb.serve.comparisons` fills: what runs have in common is for floors
above this one to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynaweb.report.charts import Series, interval_bar, line_chart
from dynaweb.report.data import Curve
from dynaweb.report.html import Linked, own_page, way_back
from dynaweb.report.markup import Html, anchor, el, embed, heading, join, section, table, words
from dynaweb.report.sections import RATES, first_metrics, live_buttons, short_value
from dynaweb.runs.names import AUDIT
from dynaweb.stats import Estimate, PairedDifference, interval_text

SETTINGS_SHOWN = 12
"""Settings that differ, at most, that are shown without a click."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run of a group: the `path` of its page in the site, and its curves."""

    path: str
    seed: int
    status: str
    curves: tuple[Curve, ...] = ()
    has_episodes: bool = False


@dataclass(frozen=True, slots=True)
class ComparedGroup:
    """Runs that differ in their seed only. `success` holds that of each arm by name, `costs` numbers as text."""

    label: str
    runs: tuple[ComparedRun, ...]
    success: Mapping[str, Estimate] = field(default_factory=dict)
    costs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compared:
    """What the page shows. `arms` are labels by name, the one that runs are about first; `pairs` holds for each arm the
    difference of the second group of a pair to the first, None where they share no episode, and whether its interval
    leaves out 0 at the level that is corrected for `comparisons`. `differences` are settings with their value in each
    group, `problems` runs that could not be read, with the reason.
    """

    groups: tuple[ComparedGroup, ...]
    arms: Mapping[str, str] = field(default_factory=dict)
    pairs: Mapping[str, Mapping[tuple[int, int], tuple[PairedDifference, bool] | None]] = field(default_factory=dict)
    comparisons: int = 1
    differences: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


def comparison_page(data: Compared, *, linked: Linked) -> str:
    """The page as HTML source."""
    theme, _ = live_buttons()
    n = len(data.groups)
    what = f"{n} groups of runs side by side" if n > 1 else "The arms of a run side by side"
    header = el("header", way_back(linked), el("h1", what), _groups(data), theme)
    main = el(
        "main",
        *_problems(data),
        _success(data),
        _curves(data),
        _settings(data),
        _episodes(data),
    )
    plain = embed(_plain(data), id="compared")
    scripts, styles = ("episode.js", "comparison.js"), ("viewer.css", "site.css")
    title = " and ".join(group.label for group in data.groups[:3]) or "comparison"
    body = join(header, main, plain)
    return own_page(f"Comparison: {title}", body, linked=linked, scripts=scripts, styles=styles, pictures=True)


def _groups(data: Compared) -> Html:
    """Each group with its runs."""
    items = []
    for at, group in enumerate(data.groups):
        links = [el("a", f"seed {run.seed}", href=_address(run.path), title=run.path or None) for run in group.runs]
        swatch = el("i", class_=f"swatch c{at % 6}")
        items.append(el("li", swatch, el("b", group.label), *_between(links), data_group=at))
    return el("ul", *items, class_="groups")


def _between(links: Sequence[Html]) -> list[Html]:
    return [el("span", link, class_="seed") for link in links]


def _address(path: str) -> str:
    from urllib.parse import quote

    return f"{quote(path)}/report.html" if path else "report.html"


def _problems(data: Compared) -> list[Html]:
    return [el("p", el("b", f"{path} is left out: "), why, class_="trouble") for path, why in data.problems.items()]


def _success(data: Compared) -> Html | None:
    """Success of every group by arm; the script writes the differences, against whichever group is chosen."""
    if not data.arms:
        return None
    parts = [_arm(data, name, label) for name, label in data.arms.items()]
    lead = (
        "Share of episodes that end in success, by the environment's own check. Differences are paired: the same "
        "episodes, played by both."
    )
    level = f" at the level corrected for {data.comparisons} comparisons" if data.comparisons > 1 else ""
    note = (
        "Intervals: Wilson for shares (widened by Student's t over seeds when there are several), bootstrap over seeds "
        f"and episodes for differences; bold where the interval leaves out 0{level}."
    )
    options = [el("option", group.label, value=at) for at, group in enumerate(data.groups)]
    chooser = el("select", *options, id="reference")
    choice = el("label", "Differences against ", chooser, class_="check") if len(data.groups) > 1 else None
    arm_options = [el("option", label, value=name) for name, label in data.arms.items()]
    arm = el("label", "Arm ", el("select", *arm_options, id="arm"), class_="check") if len(data.arms) > 1 else None
    controls = el("div", arm, choice, class_="filters") if arm is not None or choice is not None else None
    return section("Success", lead, controls, *parts, el("p", note, class_="note"))


def _arm(data: Compared, name: str, label: str) -> Html:
    estimates = [group.success.get(name) for group in data.groups]
    lows = [one.low for one in estimates if one is not None and one.low is not None]
    scale = (max(0.0, min(lows, default=0.0) - 0.05), 1.0)
    scale_text = f"{100 * scale[0]:.0f} to {100 * scale[1]:.0f} %"
    costs = list(dict.fromkeys(cost for group in data.groups for cost in group.costs))
    head = [("Runs", ""), (f"Success of {label} [95 %]", "n"), (scale_text, ""), ("n", "n")]
    head += [("Difference", "n")] if len(data.groups) > 1 else []
    head += [(cost, "n") for cost in costs]
    rows = []
    for at, (group, one) in enumerate(zip(data.groups, estimates, strict=True)):
        known = one if one is not None and one.value is not None else None
        value = f"{100 * known.value:.1f} %" if known is not None and known.value is not None else "-"
        interval = el("small", interval_text(known), class_="whole") if known is not None else None
        bar = interval_bar(one, scale)
        seeds = el("small", f"{len(group.runs)} seeds", class_="whole") if len(group.runs) > 1 else None
        cells = [
            el("td", el("i", class_=f"swatch c{at % 6}"), " ", el("b", group.label)),
            el("td", el("span", el("span", value, class_="big"), interval), class_="n", data_label="Success [95 %]"),
            el("td", bar, data_label=scale_text) if bar is not None else el("td"),
            el("td", el("span", str(one.n if one else 0), seeds), class_="n", data_label="n"),
        ]
        if len(data.groups) > 1:
            cells.append(el("td", class_="n difference", data_label="Difference"))
        cells += [el("td", el("span", group.costs.get(cost, "-")), class_="n", data_label=cost) for cost in costs]
        rows.append(el("tr", *cells, data_group=at))
    return el("div", table(head, rows), class_="card arm", data_arm=name)


def _curves(data: Compared) -> Html | None:
    """One chart a stage and metric that at least one group has a curve of, a line a group: the mean over its seeds."""
    curves: dict[tuple[str, str], dict[int, list[Curve]]] = {}
    for at, group in enumerate(data.groups):
        for run in group.runs:
            for curve in run.curves:
                if curve.stage != AUDIT and len(set(curve.values)) > 1:
                    curves.setdefault((curve.stage, curve.metric), {}).setdefault(at, []).append(curve)
    if not curves:
        return None
    # What reinforcement learning did comes first, and of that what reports show first.
    stages = sorted({stage for stage, _ in curves}, key=lambda stage: (stage != "rl", stage))
    main = [metric for stage, metric in curves if stage == stages[0]]
    first = [(stages[0], metric) for metric in first_metrics(main)]
    more = [key for stage in stages for key in sorted(curves) if key[0] == stage and key not in first]
    fold = None
    if more:
        charts = el("div", *[_chart(data, key, curves[key]) for key in more], class_="charts")
        fold = el("details", el("summary", f"{len(more)} more curve{'s' if len(more) > 1 else ''}"), charts)
    several = any(len(group.runs) > 1 for group in data.groups)
    lead = "Lines of several seeds are their mean, thin lines reach from the lowest to the highest." if several else ""
    return section(
        "Learning curves",
        lead,
        el("div", *[_chart(data, key, curves[key]) for key in first], class_="charts"),
        fold,
    )


def _chart(data: Compared, key: tuple[str, str], lines: Mapping[int, Sequence[Curve]]) -> Html:
    stage, metric = key
    series = [_series(data.groups[at].label, curves, at) for at, curves in lines.items()]
    return line_chart(f"{words(metric)} ({words(stage)})", series, rate=any(word in metric for word in RATES))


def _series(label: str, curves: Sequence[Curve], colour: int) -> Series:
    if len(curves) == 1:
        return Series(label, curves[0].points, colour=colour)
    by_update: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve.points:
            if y is not None:
                by_update.setdefault(x, []).append(y)
    known = sorted(by_update.items())
    bars = [(x, min(values), max(values)) for x, values in known if len(values) > 1]
    return Series(label, [(x, sum(values) / len(values)) for x, values in known], bars, colour=colour)


def _settings(data: Compared) -> Html | None:
    if len(data.groups) < 2:
        return None
    if not data.differences:
        return section("Settings that differ", "No setting differs.")
    labels = [group.label for group in data.groups]
    rows = [
        el(
            "tr",
            el("td", el("code", path)),
            *[
                el("td", el("code", short_value(value)), data_label=label)
                for label, value in zip(labels, values, strict=True)
            ],
        )
        for path, values in data.differences.items()
    ]
    card = el("div", table([("Setting", ""), *[(label, "") for label in labels]], rows), class_="card settings")
    many = len(rows) > SETTINGS_SHOWN
    body = el("details", el("summary", f"{len(rows)} settings"), card) if many else card
    return section("Settings that differ", "", body)


def _episodes(data: Compared) -> Html | None:
    """Two arms side by side, episode by episode; the script loads what they have played."""
    if not any(run.has_episodes for group in data.groups for run in group.runs):
        return None
    title, lead = "Paired episodes", "The same task, played by two arms: the outcome of each, and where they part."

    def side(name: str, label: str) -> Html:
        run = el("select", id=f"run-{name}", aria_label=f"run of {label}")
        return el("div", el("b", label), run, el("select", id=f"arm-{name}", aria_label=f"arm of {label}"))

    search = el("input", id="search", type="search", placeholder="Search tasks", aria_label="search tasks")
    kinds = el("select", id="pairing", aria_label="which episodes")
    aside = el("aside", el("ol"), el("p", class_="range muted"))
    return el(
        "section",
        heading(title),
        el("p", lead, class_="lead"),
        el("div", side("a", "A"), side("b", "B"), class_="sides"),
        el("div", id="tally", class_="tally", role="status"),
        el("div", search, kinds, class_="filters"),
        el("div", aside, el("div", class_="detail"), id="pairs", class_="card viewer"),
        id=anchor(title),
    )


def _plain(data: Compared) -> dict[str, Any]:
    """What the script needs: which runs there are, and every difference as numbers."""
    return {
        "groups": [
            {"label": group.label, "runs": [[run.path, run.seed, run.has_episodes] for run in group.runs]}
            for group in data.groups
        ],
        "pairs": {
            arm: {f"{first}-{second}": _difference(pair) for (first, second), pair in pairs.items()}
            for arm, pairs in data.pairs.items()
        },
    }


def _difference(pair: tuple[PairedDifference, bool] | None) -> dict[str, Any] | None:
    if pair is None:
        return None
    paired, is_significant = pair
    one = paired.difference
    numbers = {"value": one.value, "low": one.low, "high": one.high, "n": one.n}
    return numbers | {
        "gained": paired.gained,
        "lost": paired.lost,
        "significant": is_significant,
    }
