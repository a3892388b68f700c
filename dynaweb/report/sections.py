"""The sections of the report, each a function from the data to HTML, or None when there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from dynaweb.report.charts import Series, interval_bar, line_chart, palette, short
from dynaweb.report.data import Curve, JudgeAudit, Measure, ReportData, Stage
from dynaweb.report.markup import Html, code_row, el, fold, section, table, with_minus, words
from dynaweb.report.outcome import UNGRADED
from dynaweb.report.table import ClosingRow, closing_rows, cost_totals, headline, made_words, reference_words
from dynaweb.runs.names import AUDIT, IMAGE_TOKENS, PROMPT_TOKENS_LEFT_OUT, PROMPTS, PROMPTS_CUT, cut_share
from dynaweb.stats import (
    COUNT,
    NO_INTERVAL,
    SCORE,
    Estimate,
    PairedDifference,
    count,
    difference_text,
    duration,
    interval_text,
    mean,
)

STATUS = {"done": "good", "failed": "bad", "interrupted": "warn", "running": "warn"}


def header(data: ReportData, *, live: bool = False, up: Html | None = None) -> Html:
    """Title, how the run ended, and its result in words; `live` adds the button that news brings up, `up` is the way
    back to a list of runs."""
    chips = [el("span", data.status, class_=f"chip {STATUS.get(data.status, '')}")]
    if (time := _time_chip(data)) is not None:
        chips.append(time)
    chips.append(el("span", f"seed {data.seed}", class_="chip"))
    words = with_minus(headline(data)).replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    theme, news = live_buttons()
    choices = made_words(data)
    return el(
        "header",
        up,
        el("h1", data.title),
        el("p", data.subtitle, class_="muted") if data.subtitle else None,
        el("p", f"Made with {choices}.", class_="muted") if choices else None,
        theme,
        el("div", *chips, class_="chips"),
        news if live else None,
        el("p", words, class_="verdict") if words else None,
    )


def _time_chip(data: ReportData) -> Html | None:
    """The time of all stages, whichever call made them; that of the last call where no stage has told its time."""
    if (seconds := cost_totals(data).get("seconds")) is not None:
        what = "all stages" if data.status == "done" else "stages so far"
        about = "what the stages took when they were made, in this call or before"
        return el("span", f"{what} {duration(seconds)}", class_="chip", title=about)
    return (
        el("span", duration(data.seconds), class_="chip", title="the last call") if data.seconds is not None else None
    )


def live_buttons() -> tuple[Html, Html]:
    """The buttons that `base.js` works on: light or dark, and the one that news brings up."""
    about = "switch between light and dark"
    theme = el("button", "◐", id="theme", type="button", title="light or dark", aria_label=about)
    return theme, el("button", "There is more to see: show it", id="news", type="button", hidden=True)


def arms(data: ReportData) -> Html | None:
    """The headline table."""
    rows = closing_rows(data)
    if not rows:
        return None
    others = _others(data)
    head = [("Arm", ""), ("Success [95 %]", "n"), ("", ""), ("n", "n")]
    head += [(label, "n") for label, _ in others]
    low = min([row.success.low for row in rows if row.success.low is not None], default=0.0)
    scale = (max(0.0, low - 0.05), 1.0)
    head[2] = (_scale_text(scale), "")
    rows_table = table(head, [_arm_row(row, scale, others) for row in rows])
    lead = (
        f"Share of {data.episodes_are} that end in success, by the environment's own check. Every arm plays the same "
        "episodes; differences are paired, in percentage points, bold where the interval leaves out 0."
    )
    why = reference_words(data)
    note = (
        "Intervals: Wilson for shares (widened by Student's t over seeds when there are several), bootstrap over seeds "
        "and episodes for differences. Episodes that could not be graded are left out."
    )
    sentences = [f"{why}." if why else "", data.browser_sample, note]
    notes = [el("p", words, class_="note") for words in sentences if words]
    return section("Result", lead, el("div", rows_table, class_="card"), *notes)


Other = tuple[str, Callable[[ClosingRow], PairedDifference | str | None]]
"""A column of differences: its head, and what a row has in it."""


def _others(data: ReportData) -> list[Other]:
    """To where the arms started, and to the reference where that is another arm."""
    start, reference = data.start, data.reference
    columns: list[Other] = []
    if start is not None:
        name = "start and reference" if start == reference else "start"
        columns.append((f"Against the {name}: {start.label}", lambda row: name if row.is_start else row.since_start))
    if reference is not None and reference != start:
        label = f"Against the reference: {reference.label}"
        # The start is told apart already: its column says how far the reference is from it.
        columns.append((label, lambda row: "reference" if row.is_reference else None if row.is_start else row.against))
    return columns


def _scale_text(scale: tuple[float, float]) -> str:
    return f"{100 * scale[0]:.0f} to {100 * scale[1]:.0f} %"


def _arm_row(row: ClosingRow, scale: tuple[float, float], others: Sequence[Other]) -> Html:
    success, arm = row.success, row.arm
    bar = interval_bar(success, scale, main=arm.role == "main")
    missing = el("small", f"{success.missing} not graded") if success.missing else None
    seeds = el("small", f"{len(arm.outcomes)} seeds") if len(arm.outcomes) > 1 else None
    interval = el("small", interval_text(success), class_="whole") if success.value is not None else None
    value = "-" if success.value is None else f"{100 * success.value:.1f} %"
    return el(
        "tr",
        el("td", el("b", arm.label), el("small", arm.note) if arm.note else None),
        el("td", el("span", el("span", value, class_="big"), interval), class_="n", data_label="Success [95 %]"),
        el("td", bar, data_label=_scale_text(scale)) if bar is not None else el("td"),
        el("td", el("span", str(success.n), missing, seeds), class_="n", data_label="n"),
        *[_difference_cell(label, of(row)) for label, of in others],
        class_="main" if arm.role == "main" else None,
    )


def _difference_cell(label: str, against: PairedDifference | str | None) -> Html:
    if against is None:
        return el("td")
    if isinstance(against, str):
        return el("td", el("span", against, class_="muted"), class_="n", data_label=label)
    difference = against.difference
    counts = f"n = {difference.n}: {against.gained} gained, {against.lost} lost"
    text = with_minus(difference_text(difference))
    cell = el("b", text) if against.is_significant else text
    return el("td", el("span", cell, el("small", counts)), class_="n", data_label=label)


def prerequisites(data: ReportData) -> Html | None:
    """What the result rests on besides the method."""
    if not data.prerequisites:
        return None
    items = el("ul", *[el("li", with_minus(sentence)) for sentence in data.prerequisites], class_="plain")
    return section("What the result rests on besides the method", "", items)


def stages(data: ReportData) -> Html | None:
    """What each stage cost."""
    if not data.stages:
        return None
    columns = [one for one in STAGE_COSTS if one[0] not in RARE or any(stage.cost.get(one[0]) for stage in data.stages)]
    head = [("Stage", ""), ("State", "")] + [(label, "n") for _, label in columns]
    total = _total(data.stages)
    rows = [_stage_row(stage, columns) for stage in [*data.stages, total]]
    note = "A cached stage shows what it cost when it was made; the sum is over all stages, cached or not."
    return section("Stages and cost", "", el("div", table(head, rows), class_="card"), el("p", note, class_="note"))


RARE = frozenset(("static_steps", PROMPTS_CUT, PROMPT_TOKENS_LEFT_OUT, IMAGE_TOKENS))
"""Columns that are there when a stage has such a cost: steps in the real environment without a browser, prompts that
were cut to fit the model, and the tokens left out of them."""
STAGE_COSTS = (
    ("seconds", "Time"),
    ("tokens_generated", "Tokens generated"),
    ("tokens_trained", "Tokens trained"),
    ("browser_steps", "Browser steps"),
    ("static_steps", "Without a browser"),
    (PROMPTS_CUT, "Prompts cut"),
    (PROMPT_TOKENS_LEFT_OUT, "Tokens left out"),
    (IMAGE_TOKENS, "Tokens of images"),
    ("peak_memory_mib", "Peak memory"),
)
"""Keys of `Stage.cost` and their columns."""


def _total(stages: Sequence[Stage]) -> Stage:
    """Sums, and the highest memory."""
    cost: dict[str, float] = {}
    for key in (PROMPTS, *(key for key, _ in STAGE_COSTS)):
        values = [stage.cost[key] for stage in stages if key in stage.cost]
        if values:
            cost[key] = max(values) if key == "peak_memory_mib" else sum(values)
    return Stage("All", "", cost=cost)


def _stage_row(stage: Stage, columns: Sequence[tuple[str, str]]) -> Html:
    state = el("span", stage.status, class_=f"chip {STATUS.get(stage.status, '')}") if stage.status else None
    key = el("code", stage.key[:8], title=stage.key) if stage.key else None
    numbers = [
        el("td", el("span", _stage_cost(name, stage.cost)), class_="n", data_label=label)
        if name in stage.cost
        else el("td", class_="n")
        for name, label in columns
    ]
    detail = el("small", stage.detail) if stage.detail else None
    label = el("b", words(stage.name)) if stage.status else el("b", stage.name)
    state_cell = el("td", el("span", state, " ", key), data_label="State") if state is not None else el("td")
    return el("tr", el("td", label, detail), state_cell, *numbers)


def _stage_cost(name: str, cost: Mapping[str, float]) -> str:
    return cut_share(cost) or "0" if name == PROMPTS_CUT else cost_text(name, cost[name])


def cost_text(name: str, value: float) -> str:
    """A cost with its unit."""
    if name == "seconds":
        return duration(value)
    if name == "peak_memory_mib":
        return f"{value / 1024:.2f} GiB" if value >= 1024 else f"{value:.0f} MiB"
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value:,.0f}"


def fidelity(data: ReportData) -> Html | None:
    """How good the world model's pages are."""
    if not data.fidelity:
        return None
    lead = "On real transitions of sites that the world model was not fitted on, as far as they need a prediction."
    return section("World model", lead, measure_table(data.fidelity))


def measure_table(measures: Sequence[Measure]) -> Html:
    """Measures with their values, intervals and counts."""
    head = [("Measure", ""), ("Value", "n"), ("95 % interval", "n"), ("n", "n")]
    return el("div", table(head, [_measure_row(measure) for measure in measures]), class_="card")


def drift(data: ReportData) -> Html | None:
    """How errors add up over the steps of a dream."""
    if not data.drift:
        return None
    lead = "Real episodes repeated in dreams: each page is dreamed from the dreamed page before. Bars: 95 % intervals."
    return section("Drift of dreams", lead, el("div", drift_chart(data.drift), class_="charts"))


def _measure_row(measure: Measure) -> Html:
    meaning = el("small", measure.meaning) if measure.meaning else None
    return el("tr", el("td", measure.label, meaning), *_estimate_cells(measure.estimate))


def _estimate_cells(estimate: Estimate) -> tuple[Html, Html, Html]:
    value = "-" if estimate.value is None else with_minus(f"{estimate.value:.3f}")
    none = "" if estimate.value is None else NO_INTERVAL
    interval = none if estimate.low is None or estimate.high is None else f"[{estimate.low:.3f}, {estimate.high:.3f}]"
    return (
        el("td", el("b", value), class_="n", data_label="Value"),
        el("td", el("span", with_minus(interval), class_="range"), class_="n", data_label="95 % interval"),
        el("td", el("span", str(estimate.n)), class_="n", data_label="n"),
    )


def audits(data: ReportData) -> Html | None:
    """The judge against the environment."""
    if not data.audits:
        return None
    head = [("Real episodes of", ""), ("False positives", "n"), ("False negatives", "n")]
    rows_table = table(head, [_audit_row(audit) for audit in data.audits])
    lead = (
        "The judge's calls on real episodes beside the environment's own check. False positives are failures that it "
        "takes for successes: when they grow, reward in dreams stops meaning anything. Shares are of the episodes that "
        "the judge was asked about; those that did not end by themselves are scored 0 by code."
    )
    return section("Judge", lead, el("div", rows_table, class_="card"))


def _audit_row(audit: JudgeAudit) -> Html:
    failed, solved = max(audit.failed, audit.false_positive.n), max(audit.solved, audit.false_negative.n)
    return el(
        "tr",
        el("td", audit.label),
        _audit_cell("False positives", audit.false_positive, count(failed, "failure")),
        _audit_cell("False negatives", audit.false_negative, count(solved, "success")),
    )


def _audit_cell(label: str, estimate: Estimate, every: str) -> Html:
    value = "-" if estimate.value is None else f"{100 * estimate.value:.1f} %"
    small = el("small", f"{interval_text(estimate)} of {estimate.n} asked about, {every} in all")
    return el("td", el("span", el("b", value), small), class_="n", data_label=label)


def failures(data: ReportData, shown: Collection[tuple[str, str]] = ()) -> Html | None:
    """Unsuccessful episodes by kind; counts link to the trajectories of the arm and kind that are `shown`."""
    kinds = sorted({kind for counts in data.failures.values() for kind in counts})
    if not kinds:
        return None
    names = list(data.failures)
    sums = {kind: sum(counts.get(kind, 0) for counts in data.failures.values()) for kind in kinds}
    kinds.sort(key=lambda kind: -sums[kind])
    head = [("Kind", "")] + [(_episodes_label(data, name), "n") for name in names]
    rows = [_failure_row(data, kind, names, shown) for kind in kinds if kind not in UNGRADED]
    ungraded = [_failure_row(data, kind, names, shown) for kind in kinds if kind in UNGRADED]
    if ungraded:
        why = el("small", "Nobody knows how these would have ended: they are neither failures nor successes.")
        rows += [el("tr", el("td", el("b", "Not graded"), why, colspan=len(head))), *ungraded]
    lead = "Episodes that did not succeed, by what went wrong."
    lead += " A number leads to its trajectories." if shown else ""
    return section("Failures by kind", lead, el("div", table(head, rows), class_="card"))


def _episodes_label(data: ReportData, name: str) -> str:
    label = next((arm.label for arm in data.arms if arm.name == name), words(name))
    return f"{label} (n = {data.episodes[name]})" if name in data.episodes else label


def _failure_row(data: ReportData, kind: str, names: Sequence[str], shown: Collection[tuple[str, str]]) -> Html:
    cells = [
        el("td", _failure_count(data, kind, name, shown), class_="n", data_label=_episodes_label(data, name))
        for name in names
    ]
    return el("tr", el("td", kind), *cells)


def _failure_count(data: ReportData, kind: str, name: str, shown: Collection[tuple[str, str]]) -> Html:
    """A count; a link where the viewer has such episodes."""
    number = data.failures[name].get(kind, 0)
    label = next((arm.label for arm in data.arms if arm.name == name), name)
    if not number or (label, kind) not in shown:
        return el("span", str(number))
    about = f"{count(number, 'episode')} of {label}: {kind}"
    return el("a", str(number), href=f"#episodes?{urlencode({'arm': label, 'failure': kind})}", aria_label=about)


def recipe(data: ReportData) -> Html | None:
    """The resolved recipe, the plugins and the versions, folded."""
    parts: list[Html] = []
    if data.settings:
        rows = [code_row(item.path, short_value(item.value), item.origin) for item in data.settings]
        parts.append(fold(count(len(rows), "setting"), [("Setting", ""), ("Value", ""), ("From", "")], rows))
    if data.plugins:
        keys = ("kind", "name", "package", "version")
        rows = [code_row(*(item.get(key, "") for key in keys)) for item in data.plugins]
        head = [("Kind", ""), ("Name", ""), ("Package", ""), ("Version", "")]
        parts.append(fold(count(len(rows), "plugin"), head, rows))
    if data.versions:
        rows = [code_row(name, version) for name, version in data.versions.items()]
        parts.append(fold("Versions", [("Package", ""), ("Version", "")], rows))
    return section("Recipe", "Everything that this run was made with.", *parts) if parts else None


def short_value(value: Any) -> str:
    """A setting's value as recipes write it; `-` for one that is not there."""
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


AUDIT_LINES = {
    "judge_reward": "reward by the judge",
    "real_success": "success on real pages",
    "judge_false_positive": "real failures that the judge accepts",
}
AUDIT_LEAD = (
    "Every few updates, rollouts of the last update were repeated on real pages, where the environment's own check "
    "knows the outcome. Reward that rises while success falls means that the policy learns to please its judge or its "
    "world model. Where the judge accepts most real failures, its reward says little."
)


def audited(data: ReportData) -> Html | None:
    """The section; None for a run without audits."""
    curves = {curve.metric: curve for curve in data.curves if curve.stage == AUDIT}
    if not curves and not data.alarms:
        return None
    lines = [Series(label, curves[name].points) for name, label in AUDIT_LINES.items() if name in curves]
    counts = curves.get("graded")
    note = f"Repeated and graded at each audit: {_numbers(counts)}." if counts is not None else ""
    words = el("ul", *[el("li", with_minus(why)) for why in data.alarms], class_="plain") if data.alarms else None
    status = el("span", count(len(data.alarms), "alarm"), class_="chip bad")
    quiet = el("span", "no alarm", class_="chip good")
    return section(
        "Reward against reality",
        AUDIT_LEAD,
        el("p", status if data.alarms else quiet),
        words,
        el("div", line_chart("Judge and environment", lines, rate=True), class_="charts") if lines else None,
        el("p", note, class_="note") if note else None,
    )


STALE_STAGE = "rl"
"""The stage whose rollouts may run ahead."""
STALE_MEASURES = {
    "staleness.mean": (COUNT, "updates that tokens were behind", "how far the policy had moved on, mean of tokens"),
    "staleness.max": (COUNT, "updates that the oldest token was behind", ""),
    "staleness.share": (SCORE, "share of stale tokens", "drawn by an earlier policy than the one in training"),
    "staleness.ess": (
        SCORE,
        "effective sample size of weights",
        "by which stale tokens count, before their cap, as a share of tokens; 1 = all fresh",
    ),
    "ratio_ess": (
        SCORE,
        "effective sample size of ratios",
        "that the loss takes, as a share of tokens; 1 = all alike",
    ),
}
"""Metrics of asynchronous training: the kind of number, label and meaning."""


def asynchronous(data: ReportData) -> Html | None:
    """How old the rollouts were that updates learned from; None for a run that trained on-policy."""
    curves = {curve.metric: curve for curve in data.curves if curve.stage == STALE_STAGE}
    if not curves.keys() & (STALE_MEASURES.keys() - {"ratio_ess"}):
        return None
    measures = [
        Measure(label, kind.cut(mean(value for _, value in curves[name].points)), meaning, name)
        for name, (kind, label, meaning) in STALE_MEASURES.items()
        if name in curves
    ]
    lead = (
        "Rollouts ran ahead of training: updates learned from those of earlier policies. Means over updates; fewer "
        "updates have ratios where all groups of some were dead."
    )
    return section("Asynchronous training", lead, measure_table(measures))


def _numbers(curve: Curve) -> str:
    values = [int(value) for _, value in curve.points if value is not None]
    low, high = min(values, default=0), max(values, default=0)
    return count(low, "rollout") if low == high else f"{low} to {high} rollouts"


RATES = ("reward", "success", "share", "rate", "fraction", "accuracy", "false", "exact", "f1", "valid")
"""Metrics with one of these words in their name are drawn on a scale from 0 to 1."""
FIRST_METRICS = ("reward", "success", "loss", "entropy")
"""Metrics with one of these words are shown at once, one of each word first; the others under a fold."""
ROW = 3
"""Charts beside each other in a wide window."""
LEAST = 3
"""Values that a line under the fold has at least."""


def curves(data: ReportData) -> Html | None:
    """Small charts, one a metric; several stages with one metric share a chart. What makes no curve is a table."""
    metrics: dict[str, list[Curve]] = {}
    for curve in data.curves:
        if curve.stage != AUDIT and curve.values:
            metrics.setdefault(curve.metric, []).append(curve)
    if not metrics:
        return None
    first = first_metrics([name for name, lines in metrics.items() if any(len(curve.values) > 1 for curve in lines)])
    changing = {name for name, lines in metrics.items() if any(_changes(curve) for curve in lines)}
    more = sorted(changing.difference(first))
    still = [curve for name in sorted(metrics.keys() - changing - set(first)) for curve in metrics[name]]
    colours = palette([[_name(curve) for curve in lines] for lines in metrics.values()], _most_seen(data))
    lead = "Faint lines are single updates, strong lines the mean of five."
    return section(
        "Learning curves",
        lead if first else "",
        _charts(metrics, first, colours) if first else None,
        el("details", el("summary", count(len(more), "more curve")), _charts(metrics, more, colours)) if more else None,
        _still(still) if still else None,
    )


def _name(curve: Curve) -> str:
    """What a line is called in every chart."""
    return curve.label or words(curve.stage)


def _most_seen(data: ReportData) -> list[str]:
    """Who gets a colour first: the arm that the run is about, then the other arms."""
    return [arm.label for arm in sorted(data.arms, key=lambda arm: arm.role != "main")]


def _changes(curve: Curve) -> bool:
    return len(curve.values) >= LEAST and len(set(curve.values)) > 1


def _still(flat: Sequence[Curve]) -> Html:
    """Metrics of which a chart would be a dot, two dots or a flat line."""
    rows = [
        el(
            "tr",
            el("td", words(curve.metric)),
            el("td", _name(curve)),
            *[el("td", number, class_="n") for number in (short(curve.values[0]), short(curve.values[-1]))],
            el("td", str(len(curve.values)), class_="n"),
        )
        for curve in flat
    ]
    head = [("Metric", ""), ("Stage", ""), ("First", "n"), ("Last", "n"), ("Updates", "n")]
    return fold(f"{count(len(rows), 'value')} without a curve", head, rows)


def first_metrics(names: Sequence[str]) -> list[str]:
    """The charts to show at once, in whole rows."""
    by_word = {word: [name for name in names if word in name] for word in FIRST_METRICS}
    best = [word if word in like else like[0] for word, like in by_word.items() if like]
    known = list(dict.fromkeys([*best, *(name for like in by_word.values() for name in like)])) or list(names)
    return known if len(known) < ROW else known[: min(2 * ROW, len(known) // ROW * ROW)]


def _charts(metrics: Mapping[str, Sequence[Curve]], names: Iterable[str], colours: Mapping[str, int]) -> Html:
    return el("div", *[_chart(name, metrics[name], colours) for name in names], class_="charts")


def _chart(name: str, lines: Sequence[Curve], colours: Mapping[str, int]) -> Html:
    series = [Series(_name(curve), curve.points, colour=colours[_name(curve)]) for curve in lines]
    only = f" ({_name(lines[0])})" if len(lines) == 1 else ""
    return line_chart(f"{words(name)}{only}", series, rate=any(word in name for word in RATES))


DRIFT_LINES = {
    "element_f1": "elements right",
    "role_f1": "elements right by kind",
    "page_kind": "kind of page right",
    "alive": "dream still follows",
}
"""Measures of the plot, in words."""
DODGE = 0.06
"""Steps that lines are moved apart, so that no interval hides another."""


def drift_chart(steps: Sequence[Mapping[str, Estimate]]) -> Html:
    """Measures by step of the dream with their 95 % intervals; the title says how many episodes there are of each."""
    shifts = [DODGE * (at - (len(DRIFT_LINES) - 1) / 2) for at in range(len(DRIFT_LINES))]
    lines = zip(DRIFT_LINES.items(), shifts, strict=True)
    series = [_series(name, label, steps, shift) for (name, label), shift in lines]
    counts = [max((one.n for one in step.values()), default=0) for step in steps]
    title = f"Open loop, by step of the dream (n = {', '.join(map(str, counts))})"
    return line_chart(title, series, x_label="step", rate=True)


def _series(name: str, label: str, steps: Sequence[Mapping[str, Estimate]], shift: float) -> Series:
    known = [(at + shift, step[name]) for at, step in enumerate(steps, 1) if name in step]
    bars = [(at, one.low, one.high) for at, one in known if one.low is not None and one.high is not None]
    return Series(label, [(at, one.value) for at, one in known], bars)
