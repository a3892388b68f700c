"""Tables and figures of published results, made again from raw results, or from runs that are done anew.

A page of documentation keeps a table between two marks, with the options that it is made with; `filled` writes it:

    <!-- results: judges --measure main,element_f1 -->
    | judge | seeds | ...
    <!-- end of results -->

Options are `--measure`, `--against`, `--pairwise`, `--full`, as of `dynaweb matrix table`, and `--arms`: a row for
every arm, as of `dynaweb compare`, which is what results without a matrix have anyway. Of a replication, `--benchmark`
gives all tables of one benchmark (`dynaweb.matrix.replication`).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from dynaweb.compare import comparing
from dynaweb.compare.figures import FORMATS, Style
from dynaweb.compare.learning import write_comparison_figures
from dynaweb.compare.raw import FOLDER, SUFFIX, RawResults, files, read_results
from dynaweb.compare.tables import Table
from dynaweb.errors import ConfigError, hint
from dynaweb.matrix import replication
from dynaweb.matrix.figures import write_figures
from dynaweb.matrix.plan import Cell, Plan, cell_id
from dynaweb.matrix.raw import plan_of_raw
from dynaweb.matrix.results import results_of
from dynaweb.matrix.table import matrix_table, pairs_table

BLOCK = re.compile(r"(<!-- results: (?P<options>[^>\n]*) -->\n)(?P<table>(?:(?!<!-- ).*\n)*)(<!-- end of results -->)")
TABLES = {"md": "markdown", "tex": "latex", "csv": "csv"}
"""The formats that tables are written in, by ending."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a table of results is made."""

    measures: tuple[str, ...] = ()
    against: str = ""
    pairwise: bool = False
    full: bool = False
    arms: bool = False
    benchmark: str = ""


_WHOLE = Options()
"""All that there is to show."""


def find(name: str, folder: Path = FOLDER) -> RawResults:
    """The raw results of a name. Raises `ConfigError` where there are none, `CheckpointError` for a damaged file."""
    known = files(folder)
    if not known:
        raise ConfigError(
            f"{folder} holds no raw results (NAME{SUFFIX}); they are in dynaweb's repository: give the command there, "
            "or say where they are with --results"
        )
    if name not in known:
        raise ConfigError(f"no raw results are called {name!r} in {folder}; {hint(name, known)}")
    return read_results(known[name])


def tables(raw: RawResults, options: Options | None = None) -> list[Table]:
    """The tables of raw results. Raises `ConfigError` for measures and rows that they do not have."""
    options = options or _WHOLE
    if options.benchmark:
        if not replication.is_replication(raw):
            raise ConfigError(f"{raw.name} is no replication, whose axes are {', '.join(replication.AXES)}")
        return replication.tables(raw, options.benchmark)
    if options is _WHOLE and replication.is_replication(raw):
        return [table for name in replication.benchmarks(raw) for table in replication.tables(raw, name)]
    if options.arms or not raw.matrix:
        comparison = comparing.compare_raw(raw)
        if options.pairwise:
            return [comparing.pairs_table(comparison, full=options.full)]
        return [comparing.comparison_table(comparison, against=options.against, full=options.full)]
    results = results_of(raw, options.measures, against=options.against)
    made = [matrix_table(results, full=options.full, differences=not options.pairwise)]
    return [*made, pairs_table(results, full=options.full)] if options.pairwise else made


def write(raw: RawResults, folder: Path, *, style: Style | None = None, figures: bool = True) -> list[Path]:
    """Write the tables (Markdown, LaTeX, CSV) and all figures (PDF, SVG, PNG) of raw results; returns the files."""
    from dynaweb.runs.atomic import write_text

    paths = []
    for ending, format in TABLES.items():
        paths.append(folder / f"{raw.name}.{ending}")
        write_text(paths[-1], "\n\n".join(table.to(format) for table in tables(raw)) + "\n")
    if replication.is_replication(raw):
        return paths
    if figures and raw.matrix:
        paths += write_figures(results_of(raw), folder, style=style, formats=FORMATS)
    elif figures:
        paths += write_comparison_figures(comparing.compare_raw(raw), folder, style=style, formats=FORMATS)
    return paths


def filled(text: str, folder: Path = FOLDER) -> str:
    """A page with every table between marks made anew from raw results.

    Raises `ConfigError` for results and options that are none, and for a mark without its end.
    """
    if text.count("<!-- results: ") != len(BLOCK.findall(text)):
        raise ConfigError("a mark `<!-- results: NAME -->` lacks its `<!-- end of results -->`")

    def made(block: re.Match[str]) -> str:
        name, options = parse(block["options"])
        body = "\n\n".join(table.to("markdown") for table in tables(find(name, folder), options))
        return f"{block[1]}{body}\n{block[4]}"

    return BLOCK.sub(made, text)


def parse(text: str) -> tuple[str, Options]:
    """The name and the options of a mark. Raises `ConfigError`."""
    try:
        name, *words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"results: {text!r} is not understood ({error}); write NAME and options") from error
    values: dict[str, str] = {}
    flags = {word.removeprefix("--") for word in words if word in ("--pairwise", "--full", "--arms")}
    rest = [word for word in words if word.removeprefix("--") not in flags]
    for option, value in zip(rest[::2], rest[1::2], strict=False):
        values[option] = value
    known = ("--measure", "--against", "--benchmark", "--pairwise", "--full", "--arms")
    wrong = [option for option in rest[::2] if option not in known[:3]]
    if wrong or len(rest) % 2:
        word = (wrong or rest[-1:])[0]
        raise ConfigError(f"results: {text!r} has an option {word!r} without sense; {hint(word, known)}")
    measures = tuple(part.strip() for part in values.get("--measure", "").split(",") if part.strip())
    chosen = {name: name in flags for name in ("pairwise", "full", "arms")}
    return name, Options(measures, values.get("--against", ""), benchmark=values.get("--benchmark", ""), **chosen)


def plan_anew(raw: RawResults) -> Plan:
    """The plan that does all runs again, each by its own recipe.

    Raises `ConfigError` for a recipe that this version of dynaweb no longer understands.
    """
    plan = plan_of_raw(raw)
    cells = [Cell(cell_id(cell.recipe), cell.labels, cell.seed, cell.recipe) for cell in plan.cells]
    return Plan(plan.matrix, plan.axes, tuple({cell.id: cell for cell in cells}.values()))


def changes(stored: RawResults, anew: RawResults) -> list[str]:
    """What came out otherwise than in the stored results, a line for each run and arm, also for those that only one of
    both has; none where every episode ended alike.
    """
    old, new = ({(run.labels, run.seed): run.record.episodes for run in one.runs} for one in (stored, anew))
    lines = []
    for labels, seed in {**old, **new}:
        before, after = old.get((labels, seed)), new.get((labels, seed))
        what = ", ".join([*(f"{axis}={value}" for axis, value in labels), f"seed {seed}"])
        if before is None or after is None:
            lines.append(f"{what}: {'not among the stored results' if before is None else 'not done anew'}")
            continue
        for arm in {**before, **after}:
            there, here = before.get(arm, {}), after.get(arm, {})
            names = {**there, **here}
            other = sum((name in there, there.get(name)) != (name in here, here.get(name)) for name in names)
            if other:
                lines.append(f"{what}, {arm}: {other} of {len(names)} episodes ended otherwise")
    return lines
