"""`dynaweb data import|export|stats|show|contamination|label`: stores of transitions and of whole episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dynaweb.cli import options as o

data_app = o.group("Stores of real transitions and of whole episodes: import, export, look at, label.")

StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="A store (.jsonl.gz).")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


@data_app.command("import")
def import_data(
    name: Annotated[str, typer.Argument(metavar="FORMAT", help="nnetnav, webarena, browsergym, mind2web or run.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file, a folder, or a data set of the hub.")],
    store: StorePath,
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="Whole episodes, for data.demos; default: transitions.")
    ] = False,
    only: o.Only = None,
    append: Annotated[bool, typer.Option("--append", help="Add to a store that is there.")] = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Read other people's data, or a run's episodes, into a store, and say what was left out and why."""
    from dynaweb import api
    from dynaweb.cli.output import emit
    from dynaweb.errors import EXIT_FAILED

    if not append:
        _refuse_existing(store, "--append adds to it")
    report = api.import_data(name, source, store, trajectories=trajectories, only=only or "")
    records = report.trajectories if trajectories else report.transitions
    counts = {
        "read": report.read,
        "kept": records,
        "dropped": dict(report.dropped),
        "noted": dict(report.noted),
        **({"dropped_episodes": dict(report.dropped_episodes)} if trajectories else {}),
    }
    written = store if records else None
    emit(
        {**counts, "store": written},
        f"{report}\n{written or f'nothing was kept: {store} is as it was'}",
        as_json=as_json,
    )
    if not records:
        raise typer.Exit(EXIT_FAILED)


@data_app.command("export")
@o.expanded
def export_data(
    store: StorePath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; a folder for `datasets`.")],
    options: o.RecipeOptions,
    to: Annotated[str, typer.Option("--to", help="parquet, datasets, trl or llamafactory.")] = "parquet",
    messages: Annotated[
        bool,
        typer.Option("--messages", help="Episodes for trl as turns, where the trainer applies the template; else ids."),
    ] = False,
    form: Annotated[
        str, typer.Option("--form", help="Answer of transitions as supervised data: delta, page, or words only.")
    ] = "delta",
    history: Annotated[int, typer.Option("--history", min=0, help="Earlier actions in a question.")] = 0,
    goal: Annotated[bool, typer.Option("--goal/--no-goal", help="The goal in a question, as for `wm.goal`.")] = True,
    force: Force = False,
) -> None:
    """Write a store for other tools and trainers.

    Transitions become questions to a world model, whole episodes the rows of a policy, in the prompt format of the
    recipe and its model.
    """
    from dynaweb import api

    if not force:
        _refuse_existing(out, "--force overwrites it")
    recipe = options.resolved() if to in ("trl", "llamafactory") else None
    count, path = api.export_data(
        store, out, to=to, form=form, history=history, goal=goal, messages=messages, recipe=recipe
    )
    options.emit({"rows": count, "path": path}, f"{count} rows: {path}")


@data_app.command("stats")
def stats(store: StorePath, as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Count what a store of transitions or of whole episodes holds."""
    from dynaweb import api
    from dynaweb.cli.output import emit

    counts = api.data_stats(store).data()
    lines = [f"{name.ljust(24)}  {_counts(value)}" for name, value in counts.items()]
    emit(counts, "\n".join(lines), as_json=as_json)


@data_app.command("show")
def show(
    store: StorePath,
    index: Annotated[int, typer.Option("--index", help="Which record, from 0; negative from the end.")] = 0,
    pages: Annotated[bool, typer.Option("--pages", help="The pages too.")] = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Print one transition or one whole episode of a store."""
    from dynaweb import api
    from dynaweb.cli.output import print_json
    from dynaweb.data.codec import to_json
    from dynaweb.data.inspect import described

    record = api.data_record(store, index)
    if as_json:
        print_json(to_json(record))
    else:
        typer.echo(described(record, pages=pages))


@data_app.command("contamination")
def contamination(
    train: Annotated[Path, typer.Argument(metavar="TRAIN", help="Transition store that was trained on.")],
    evaluation: Annotated[Path, typer.Argument(metavar="EVALUATION", help="Transition store of the evaluation.")],
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Say which sites, tasks, pages and questions of an evaluation were in the training data."""
    from dynaweb import api
    from dynaweb.cli.output import emit, table
    from dynaweb.data.inspect import LEVELS

    overlaps, total = api.contamination(train, evaluation)
    rows = [
        (one.level, f"{one.shared} of {one.total}", f"{one.affected} of {total}", LEVELS[one.level]) for one in overlaps
    ]
    text = table(("same", "distinct", "transitions", "meaning"), rows)
    emit({"transitions": total, "levels": overlaps}, text, as_json=as_json)


@data_app.command("label")
def label(
    store: StorePath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Store of the labelled transitions; goes on if there.")],
    model: Annotated[
        str, typer.Option("--model", help="Model of a server; without it, words come from templates.")
    ] = "",
    base_url: Annotated[str, typer.Option("--base-url", help="Address of an OpenAI-compatible server.")] = "",
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests at once.")] = 16,
    price_in: Annotated[float, typer.Option("--price-in", min=0, help="Price of a million prompt tokens.")] = 0.0,
    price_out: Annotated[float, typer.Option("--price-out", min=0, help="Price of a million new tokens.")] = 0.0,
    yes: Annotated[bool, typer.Option("--yes", help="Start without asking, whatever the estimate says.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the estimate only.")] = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Give transitions their reasoning and sentence of change: from templates, or from a model that sees the true page.

    The key of a server is read from $OPENAI_API_KEY.
    """
    from dynaweb.cli.output import emit, plain
    from dynaweb.data.labels import estimate, label_file
    from dynaweb.data.store import TransitionStore, existing

    settings = {"concurrency": concurrency, "price_in": price_in, "price_out": price_out}
    engine = _engine(model, base_url, settings)
    expected = estimate(existing(store), TransitionStore(out), engine)
    if dry_run:
        emit(expected, as_json=as_json)
        return
    typer.echo(str(expected), err=True)
    if engine is not None and expected.left and not yes:
        _confirm()
    done = label_file(store, out, engine, on_batch=lambda count: typer.echo(f"{count} labelled", err=True))
    spent = plain(engine.stats) if engine is not None else {}
    passed = f"{done.passed} that code decides passed on"
    text = f"{done.labelled} transitions labelled, {done.by_template} by template, {passed}; {done.total} in {out}"
    emit({**plain(done), "store": out, "spent": spent}, text, as_json=as_json)


def _confirm() -> None:
    import sys

    from dynaweb.errors import ConfigError

    if not sys.stdin.isatty():
        raise ConfigError("a server will be asked and may cost money; say --yes to start, or --dry-run to see more")
    typer.confirm("Start?", abort=True, err=True)


def _engine(model: str, base_url: str, settings: dict[str, Any]) -> Any:
    if not model:
        return None
    from dynaweb.config.server import Server
    from dynaweb.engines.server import OpenAIEngine

    return OpenAIEngine(Server(model=model, base_url=base_url, logprobs=False, **settings))


def _refuse_existing(path: Path, way: str) -> None:
    from dynaweb.errors import ConfigError

    if path.exists():
        raise ConfigError(f"{path} is there already; give another path, or {way}")


def _counts(value: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in value.items()) if isinstance(value, dict) else str(value)
