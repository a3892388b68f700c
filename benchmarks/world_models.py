"""Trained delta, trained full-state and frozen base, with and without a memory of the site, in one command:

    python benchmarks/world_models.py --env sites miniwob --out runs/world-models

For each environment: real transitions are collected (random walks, and experts for what comes next), some sites are
held out whole, the trained models are fitted on the others with the same number of updates, and all of them predict the
held-out pages one step at a time and open-loop. Written are `table.md` and `table.json`: every value with n and its
95 % interval, the differences between delta and full-state question by question (bootstrap over sites, then over
questions of a site), tokens per dream step, and what follows for the claim that delta needs at most a third of the
tokens at no lower fidelity; where it does not hold, how long the true answers are, below which no model can stay. The
pages of `dynaweb wm eval` (drift and reliability curves) lie beside them. `--docs FILE` puts the table between the two
marks of a Markdown file too: `docs/world-models.md` is made so.

The embedded sites need no browser (`--driver static`). MiniWoB++ needs Chromium and `pip install 'dynaweb[miniwob]'`;
each of its tasks with a seed counts as a site, so what is held out are seeds. With another `--model` and a GPU the same
command compares large models: --model Qwen/Qwen2.5-0.5B-Instruct --set model.dtype=bfloat16 --updates 1000
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import dynaweb
from dynaweb.config import resolve
from dynaweb.data.inspect import contamination, site_of
from dynaweb.data.store import TransitionStore
from dynaweb.errors import DynawebError, MissingError
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.runs import StageCache
from dynaweb.stages.world_model import split_by, to_predict
from dynaweb.stages.world_model_eval import WorldModelScores
from dynaweb.stats import Estimate, paired_difference, wilson
from dynaweb.types import Add
from dynaweb.web.delta import diff
from dynaweb.worldmodels.prompts import Form, answer

ARMS: Mapping[str, tuple[str, tuple[str, ...], bool]] = {
    "trained delta": ("delta", (), True),
    "trained full-state": ("full-state", (), True),
    "frozen, asked for a delta": ("frozen-llm", ("wm.form=delta",), False),
    "frozen, asked for the page": ("frozen-llm", ("wm.form=page",), False),
}
"""Label of each arm: plugin, its settings, and whether it is fitted."""
MEMORY: Mapping[str, str] = {
    "delta with memory": "trained delta",
    "full-state with memory": "trained full-state",
    "frozen with memory": "frozen, asked for a delta",
}
"""Arms that are another one, with its weights, behind a memory of the held-out sites: of each question's site all that
the other episodes have seen."""
MEASURES = ("element_f1", "changed_f1", "exact", "role_f1", "url", "page_kind", "next_action", "invalid", "tokens")
COMPARED = ("element_f1", "changed_f1", "exact", "url")
"""Measures in which delta must not be worse."""
THIRD = 1 / 3
MARKS = "<!-- measured: benchmarks/world_models.py -->", "<!-- end -->"
"""Between these lines of a Markdown file the table is put."""


@dataclass(frozen=True)
class Verdict:
    """Delta against full-state: the ratio of tokens, the differences (delta - full-state), and what follows."""

    token_ratio: float
    differences: Mapping[str, Estimate]
    words: str


def settings(given: argparse.Namespace, env: str) -> list[str]:
    """What all calls of one environment have in common."""
    own = {"sites": [f"env.task_settings.driver={given.driver}"], "miniwob": ["env.task_settings.pick=scripted"]}
    budget = [f"wm_fit.steps={given.updates}", f"wm_fit.batch={given.batch}"]
    return [
        f"env.tasks={env}",
        *own.get(env, ()),
        *budget,
        "wm_fit.holdout=0",
        f"model.threads={given.threads}",
        *given.set,
    ]


def collect(given: argparse.Namespace, env: str, folder: Path) -> tuple[Path, Path]:
    """Stores of the sites to fit on, and of those held out."""
    every = folder / "all.jsonl.gz"
    every.unlink(missing_ok=True)
    for player, share in (("random", 1.0), ("expert", given.experts)):
        count = round(given.episodes * share)
        sets = [f"explore.player={player}", f"explore.episodes={count}", f"explore.steps={given.horizon}"]
        if count:
            sets = [*settings(given, env), *sets]
            dynaweb.collect(overrides=sets, out=folder / player, store=every, seed=given.seed, progress=True)
    parts = split_by(list(TransitionStore(every)), site_of, given.holdout, seed=given.seed)
    paths = folder / "fit.jsonl.gz", folder / "held-out.jsonl.gz"
    for path, part in zip(paths, parts, strict=True):
        path.unlink(missing_ok=True)
        TransitionStore(path).extend(part)
    return paths


def score(given: argparse.Namespace, env: str, folder: Path, label: str, stores: tuple[Path, Path]) -> WorldModelScores:
    """Fit one arm, if it is fitted, and evaluate it."""
    base = MEMORY.get(label, label)
    name, own, fitted = ARMS[base]
    shared: dict[str, Any] = {"wm": name, "seed": given.seed, "model": given.model, "progress": True}
    sets = [*settings(given, env), *own]
    where, fit = (folder / one.replace(",", "").replace(" ", "-") for one in (label, base))
    weights = None
    if fitted:
        if base == label:
            dynaweb.fit_world_model(overrides=sets, data=stores[0], out=fit / "fit", **shared)
        weights = fit / "fit" / "checkpoints" / "world-model"
    else:
        sets.append(f"wm.store={stores[0]}")
    if base != label:
        sets.append("dream.memory=pages")
    scores: WorldModelScores = dynaweb.evaluate_world_model(
        overrides=sets, weights=weights, data=stores[1], horizon=given.horizon, out=where / "eval", **shared
    )
    return scores


def by_site(scores: WorldModelScores, measure: str) -> list[list[float | None]]:
    """One measure of every question, site by site."""
    sites: dict[str, list[float | None]] = {}
    for probe in scores.probes:
        sites.setdefault(str(probe["site"]), []).append(probe.get(measure))
    return list(sites.values())


def verdict(delta: WorldModelScores, full: WorldModelScores) -> Verdict:
    """Whether delta is as true as full-state with a third of the tokens."""
    spent = [scores.one_step["all"]["tokens"].value or 0.0 for scores in (delta, full)]
    ratio = spent[0] / spent[1] if spent[1] else float("nan")
    found = {name: paired_difference(by_site(full, name), by_site(delta, name)).difference for name in COMPARED}
    lower = [name for name, one in found.items() if one.high is not None and one.high < 0]
    tokens = (
        f"delta needs {ratio:.2f} of full-state's tokens per dream step ({'at most' if ratio <= THIRD else 'over'} 1/3)"
    )
    truth = f"lower fidelity in {', '.join(lower)}" if lower else f"no measure of {', '.join(COMPARED)} is shown lower"
    holds = "holds" if ratio <= THIRD and not lower else "does not hold"
    unread = [f"{scores.name} {scores.one_step['all']['invalid']}" for scores in (delta, full) if _unread(scores)]
    doubt = f" It says little: most answers cannot be read (invalid: {', '.join(unread)}); raise --updates."
    return Verdict(ratio, found, f"{tokens}; {truth}: the claim {holds} here.{doubt if unread else ''}")


def _unread(scores: WorldModelScores) -> bool:
    """Whether a model has not even learned the form of an answer, so that its tokens mean nothing."""
    return (scores.one_step["all"]["invalid"].value or 0.0) > 0.5


@dataclass(frozen=True)
class TrueAnswers:
    """Mean tokens of the true answers in both forms, and the share of the next page's elements that are new."""

    delta: float
    page: float
    new: float
    n: int

    def __str__(self) -> str:
        return (
            f"The true answers have {self.delta:.1f} tokens as deltas and {self.page:.1f} as pages "
            f"(ratio {self.delta / self.page:.2f}, n={self.n}): {self.new:.0%} of the elements of a next page are new, "
            "and those are written out in both forms."
        )


def true_answers(given: argparse.Namespace, env: str, store: Path) -> TrueAnswers:
    """What a model that makes no mistake would write on the held-out sites."""
    recipe = resolve("dynaweb", overrides=settings(given, env), model=given.model)
    prompts = RunContext(recipe, current(), StageCache(notify=current().notify)).models.format
    items = to_predict(list(TransitionStore(store)))
    forms: tuple[Form, ...] = ("delta", "page")
    lengths = [[len(prompts.world_model_target(answer(item, form))) for item in items] for form in forms]
    written = [sum(isinstance(op, Add) for op in diff(t.observation, t.next_observation).ops) for t in items]
    new = [count / max(1, len(item.next_observation.nodes)) for count, item in zip(written, items, strict=True)]
    return TrueAnswers(mean(lengths[0]), mean(lengths[1]), mean(new), len(items))


def table(env: str, found: Mapping[str, WorldModelScores], given: argparse.Namespace) -> list[str]:
    """Lines of Markdown for one environment."""
    head = ["measure", *found]
    lines = [f"## {env}", "", row(head), row(["---"] * len(head))]
    for name in MEASURES:
        values = [scores.one_step["all"].get(name) for scores in found.values()]
        if any(values):
            lines.append(row([name, *(str(value) if value else "-" for value in values)]))
    lines.append(row(["seconds a step", *(f"{scores.seconds:.4f}" for scores in found.values())]))
    lines += ["", f"Open loop, element F1 by step (alive) up to {given.horizon}:", "", row(["step", *found])]
    lines.append(row(["---"] * len(head)))
    for at in range(given.horizon):
        steps = [scores.steps[at] if at < len(scores.steps) else None for scores in found.values()]
        lines.append(row([str(at + 1), *(_step(step) for step in steps)]))
    return [*lines, "", *reliability(found)]


def reliability(found: Mapping[str, WorldModelScores]) -> list[str]:
    """How far the automatic horizon's expectation can be trusted, out of sample: a row for each model."""
    lines = ["Automatic horizon: expected -> sound (n) in bins of the model's confidence, out of sample:", ""]
    lines += [row(["model", "Brier score", "always the base rate", "n", "reliability"]), row(["---"] * 5)]
    for label, scores in found.items():
        one = scores.calibration
        if one is None:
            lines.append(row([label, "-", "-", "-", scores.uncalibrated]))
            continue
        bins = ", ".join(
            f"{part.expected:.2f} -> {wilson(round(part.sound * part.n), part.n)}" for part in one.reliability
        )
        lines.append(row([label, f"{one.brier:.3f}", f"{one.brier_of_base_rate:.3f}", str(one.n), bins]))
    return lines


def _step(step: Mapping[str, Estimate] | None) -> str:
    return f"{step['element_f1']} ({step['alive'].text(2)})" if step else "-"


def row(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def compare(given: argparse.Namespace, env: str) -> tuple[list[str], dict[str, Any]]:
    """Everything for one environment: lines of Markdown, and plain data."""
    folder = given.out / env
    stores = collect(given, env, folder)
    found = {label: score(given, env, folder, label, stores) for label in (*ARMS, *MEMORY)}
    said = verdict(found["trained delta"], found["trained full-state"])
    truth = true_answers(given, env, stores[1])
    shared, total = contamination(TransitionStore(stores[0]), TransitionStore(stores[1]))
    sizes = [len(TransitionStore(path)) for path in stores]
    differences = [f"{name} {one.text(signed=True)}" for name, one in said.differences.items()]
    lines = [
        *table(env, found, given),
        "",
        f"Delta minus full-state: {', '.join(differences)}.",
        f"{said.words} {truth}",
        "",
        f"Fitted on {sizes[0]} transitions, {given.updates} updates of {given.batch}; measured on {sizes[1]} of "
        f"held-out sites, of whose questions {shared[3].affected} of {total} were in the fitted data too.",
        "",
    ]
    data = {
        label: {
            "one_step": plain(scores.one_step),
            "steps": plain(scores.steps),
            "calibration": scores.calibration.data() if scores.calibration else scores.uncalibrated,
        }
        for label, scores in found.items()
    }
    return lines, {"arms": data, "verdict": asdict(said), "true_answers": asdict(truth), "transitions": sizes}


def plain(value: Any) -> Any:
    """Estimates as plain data."""
    if isinstance(value, Estimate):
        return asdict(value)
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value]


def main() -> None:
    """All environments that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=["sites", "miniwob"])
    parser.add_argument("--out", type=Path, default=Path("runs/world-models"))
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--episodes", type=int, default=300, help="random walks")
    parser.add_argument("--experts", type=float, default=0.5, help="expert episodes, as a share of that")
    parser.add_argument("--horizon", type=int, default=8, help="longest walk, and longest open-loop run")
    parser.add_argument("--holdout", type=float, default=0.25, help="share of the sites that nothing is fitted on")
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--driver", default="static", choices=["static", "chromium"], help="of the embedded sites")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--docs", type=Path, help="a Markdown file to put the table into")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="more settings of all calls")
    given = parser.parse_args()
    lines, data = ["# World models", ""], {}
    for env in given.env:
        try:
            current().check("env", env)
        except MissingError as error:
            sys.stderr.write(f"{env} is left out: {error}\n")
            continue
        more, data[env] = compare(given, env)
        lines += more
        (given.out / "table.md").write_text("\n".join(lines), encoding="utf-8")
        (given.out / "table.json").write_text(json.dumps(data, indent=2), encoding="utf-8")
    if not data:
        raise SystemExit("no environment is left to measure on")
    if given.docs:
        publish(lines[2:], given)
    sys.stdout.write("\n".join(lines) + "\n")


def publish(lines: Sequence[str], given: argparse.Namespace) -> None:
    """Put the tables between the marks of a document, one heading lower, with the settings they were made with."""
    text = given.docs.read_text(encoding="utf-8")
    before, mark, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not mark or not end:
        raise SystemExit(f"{given.docs} lacks the lines {MARKS[0]!r} and {MARKS[1]!r}")
    said = (
        f"Model `{given.model}`, seed {given.seed}: {given.episodes} random walks and "
        f"{round(given.episodes * given.experts)} expert episodes in each environment, {given.updates} updates of "
        f"{given.batch}."
    )
    body = "\n".join(f"#{line}" if line.startswith("#") else line for line in lines)
    given.docs.write_text(f"{before}{mark}\n\n{said}\n\n{body.strip()}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except DynawebError as error:
        raise SystemExit(f"error: {error}") from error
