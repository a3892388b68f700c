"""Damage to every document that dynaweb reads: each one is refused by name, or read as it was.

    python scripts/fuzz_documents.py [--mutations 5000] [--seed 0] [--run FOLDER] [--kind KIND]

Documents of a finished run, the stage cache, stores and matrices are damaged one at a time: bits, cuts, blocks that are
lost or written twice, and values that no run writes (400 digits, NaN, other types, 3,000 levels). Counted is what came
of it: `refused` (an error of `dynaweb.errors`, or a warning), `same` (read as if nothing had happened), `changed`
(other numbers without a word), `crashed` (any other exception). Documents that people write or that are still growing
(recipes, task files, runs that go on, records packed anew with a checksum that fits) may say something else; there only
`crashed` counts. Exits 1 when anything changed or crashed. `--run` takes a finished run instead of a small one.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dynaweb.api import import_data
from dynaweb.cli.process import file_error
from dynaweb.compare.raw import read_results, write_results
from dynaweb.compare.records import read_run
from dynaweb.config import resolve
from dynaweb.config.files import MALFORMED
from dynaweb.config.server import Server
from dynaweb.data.chunks import ChunkFile
from dynaweb.data.store import Store, TrajectoryStore, TransitionStore
from dynaweb.engines.server import ReplyError, cost_of, read_reply
from dynaweb.errors import DynawebError
from dynaweb.matrix import MatrixFolder, plan_of, read_matrix
from dynaweb.matrix.raw import collect
from dynaweb.matrix.results import results
from dynaweb.matrix.table import matrix_text
from dynaweb.protocols import EnvironmentContext
from dynaweb.report import closing_json, closing_text, gather, render
from dynaweb.runs import RunFolder, StageCache, open_run, write_json
from dynaweb.runs.checksums import CHECKSUMS, RECORDS, STATUS, with_sum
from dynaweb.runs.folder import choose_folder
from dynaweb.runs.pruning import cached_stages
from dynaweb.types import Action, EpisodeFacts, Judgement, Node, Observation, Step, Task, Trajectory, Transition

ODD = (
    *("null", "true", "0", "-1", "-0.5", "1e308", "1e999", "NaN", "-Infinity", "1" * 400, "1" * 5000, "[]", "{}", '""'),
    *('"x"', '"../../x"', '"\\ud800"', '"\\u0000"', "[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000),
    *("[null]", '{"$": "tuple"}', '{"$": "map", "v": 3}', '{"@": "9:9"}', '"' + "x" * 100_000 + '"'),
)
"""Values that no run writes at most places, as JSON."""
MARK = "\x00odd\x00"


@dataclass(frozen=True)
class Kind:
    """Documents of one kind: their files, what reads them all, and whether other numbers are damage."""

    name: str
    files: Sequence[Path]
    read: Callable[[], object]
    is_exact: bool
    is_packed: bool = False
    """Whether values in the records of a store are damaged, which is then packed anew."""


def main() -> int:
    """Fuzz, print the counts by kind, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help="a finished run, which is copied")
    parser.add_argument("--kind", help="only documents of this kind")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        kinds = [kind for kind in kinds_in(Path(folder), options.run) if options.kind in (None, kind.name)]
        counts = {kind.name: fuzz(kind, options.mutations // len(kinds), rng) for kind in kinds}
    outcomes = ("refused", "same", "changed", "crashed")
    sys.stdout.write(f"{'kind':16}" + "".join(f"{name:>9}" for name in outcomes) + "\n")
    for name, count in counts.items():
        sys.stdout.write(f"{name:16}" + "".join(f"{count[outcome]:9}" for outcome in outcomes) + "\n")
    exact = {kind.name for kind in kinds if kind.is_exact}
    return int(any(count["crashed"] or (name in exact and count["changed"]) for name, count in counts.items()))


def fuzz(kind: Kind, mutations: int, rng: random.Random) -> Counter[str]:
    """Damage one file at a time, read, and put it back; the counts of what came of it."""
    before, counts = _text(kind.read()), Counter[str]()
    for _ in range(mutations):
        path = rng.choice(kind.files)
        data = path.read_bytes()
        mode = path.stat().st_mode
        path.unlink()  # a run folder and the cache share files
        damaged = _packed(data, path, rng) if kind.is_packed else damage(data, path, rng)
        if damaged is not None:
            path.write_bytes(damaged)
        outcome = _outcome(kind, before)
        counts[outcome] += 1
        if outcome == "crashed" or (outcome == "changed" and kind.is_exact):
            copy = Path(tempfile.mkdtemp(prefix=f"fuzz-{outcome}-")) / path.name
            copy.write_bytes(damaged or b"")
            sys.stderr.write(f"{kind.name}: {path.name} {outcome}; it is {copy}\n")
        path.write_bytes(data)
        path.chmod(mode)
    return counts


def _outcome(kind: Kind, before: str) -> str:
    with _logged() as messages:
        try:
            after = _text(kind.read())
        except DynawebError:
            return "refused"
        except Exception as error:
            if file_error(error) is not None:  # the command line has words for it
                return "refused"
            traceback.print_exc()
            return "crashed"
    return "refused" if messages else "same" if after == before else "changed"


@contextmanager
def _logged() -> Iterator[list[str]]:
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("dynaweb")
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def damage(data: bytes, path: Path, rng: random.Random) -> bytes | None:
    """The bytes of a file after one accident; None where it is gone."""
    if path.suffix in (".json", ".jsonl", ".toml") and rng.random() < 0.6:
        return _odd(data.decode(), path, rng).encode("utf-8", "surrogatepass")
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 16, 512))
    # A cell without an outcome has not been tried: that a file is not there is no damage to it.
    kind = rng.randrange(1 if path.parent.name == "outcomes" else 0, 8)
    if kind == 0:
        return None
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[at + size :]
    if kind == 3:
        return data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
    if kind == 4:
        return data[:at] + data[at : at + size] + data[at:]
    if kind == 5:
        return data[:at] + rng.randbytes(size) + data[at:]
    if kind == 6 and path.suffix == ".jsonl":
        lines = data.splitlines(keepends=True)
        return b"".join(rng.sample(lines, rng.randrange(len(lines) + 1)))
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _odd(text: str, path: Path, rng: random.Random) -> str:
    """A document with one value or key that is not what it was."""
    if path.suffix == ".toml":
        lines = text.splitlines()
        at = rng.choice([at for at, line in enumerate(lines) if "=" in line])
        lines[at] = f"{lines[at].partition('=')[0]}= {rng.choice((*ODD, 'nan', '-inf', '2026-01-01', '1_0'))}"
        return "\n".join(lines) + "\n"
    if path.suffix == ".jsonl":
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = _odd_json(lines[at], rng)
        return "\n".join(lines) + "\n"
    return _odd_json(text, rng)


def _odd_json(text: str, rng: random.Random) -> str:
    document = json.loads(text)
    value, at = rng.choice([(document, None), *_places(document)])
    if at is None:
        return rng.choice(ODD)
    action = rng.randrange(4)
    if action == 0 and isinstance(value, dict):
        value[f"{at}x"] = value.pop(at)
    elif action == 0:
        value.append(value[at])
    elif action == 1:
        del value[at]
    elif action == 2 and isinstance(value[at], int | float):
        value[at] += rng.choice((1, -1, 0.5))
    else:
        value[at] = MARK
    return json.dumps(document).replace(json.dumps(MARK), rng.choice(ODD))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a document with every key or index of it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for at in keys:
        yield value, at
        yield from _places(value[at])


def _packed(data: bytes, path: Path, rng: random.Random) -> bytes:
    """A store with one odd value in one of its lines, and checksums that fit."""
    path.write_bytes(data)
    chunks = ChunkFile(path)
    lines = [chunks.lines(at) for at in range(len(chunks.chunks))]
    records = [chunk.records for chunk in chunks.chunks]
    path.unlink()
    chunk = rng.randrange(len(lines))
    at = rng.randrange(len(lines[chunk]))
    lines[chunk][at] = _odd_json(lines[chunk][at], rng)
    ChunkFile(path).append(list(zip(lines, records, strict=True)))
    damaged = path.read_bytes()
    path.unlink()
    return damaged


# What is damaged, and what reads it.


def kinds_in(folder: Path, run: Path | None = None) -> list[Kind]:
    """Documents of every kind, made below a folder; those of a run are copies of `run`, or of a small one."""
    done = folder / "done"
    if run is None:
        _make_run(done, seed=0)
    else:
        shutil.copytree(run, done, ignore=shutil.ignore_patterns("checkpoints", ".lock"))
    going = shutil.copytree(done, folder / "going")
    (going / CHECKSUMS).unlink()
    write_json(going / STATUS, {"status": "running"})
    shutil.copytree(going, folder / "played")
    stores = sorted((done / "trajectories").glob("*.gz"))
    whole, packed = _copies(stores, folder / "stores"), _copies(stores, going.with_name("packed"))
    for files in (whole, packed):
        files.append(_make_transitions(files[0].with_name("transitions.jsonl.gz"), TrajectoryStore(stores[0])))
    cache = _make_cache(folder / "cache", stores[0])
    matrix = _make_matrix(folder / "matrix")
    return [
        Kind("finished run", [*_files(done, *RECORDS), done / CHECKSUMS, done / STATUS], lambda: _run(done), True),
        Kind("run", [*_files(going, *RECORDS), going / STATUS], lambda: _resumed(going), False),
        Kind("run that is read", [*_files(going, *RECORDS), going / STATUS], lambda: _run(going), False),
        Kind("cache", _files(cache, "**/*"), lambda: _cached(folder / "cache"), True),
        Kind("store", whole, lambda: _stores(whole), True),
        Kind("packed store", packed, lambda: _packed_run(packed, folder / "played"), False, is_packed=True),
        Kind("matrix", _files(matrix.path, "matrix.json", "outcomes/*.json"), lambda: _matrix(matrix), True),
        Kind("matrix cells", _files(matrix.path, "cells/*/*.json*"), lambda: _matrix(matrix), True),
        *_written_by_people(folder / "people"),
        *_of_others(folder / "others"),
        _server_reply(folder / "reply.json"),
    ]


def _make_run(folder: Path, seed: int) -> Path:
    """A finished run: two arms, an audit of the judge, curves, costs, and episodes of three kinds."""
    plugin = {"kind": "opt", "name": "gspo", "package": "dynaweb", "version": "0.2.0"}
    run = open_run(resolve("smoke", overrides=[f"run.seed={seed}"]), out=folder, plugins=[plugin])
    run.begin()
    rng = random.Random(seed)
    arms = {name: [float(rng.random() < rate) for _ in range(6)] for name, rate in (("sft", 0.3), ("dynaweb", 0.7))}
    summary = [
        {"name": name, "label": name, "role": "sft" if name == "sft" else "main", "outcomes": [outcomes]}
        for name, outcomes in arms.items()
    ]
    probes = [{"element_f1": 0.5, "url": 1.0, "exact": None}, {"element_f1": 0.25, "url": 0.0, "exact": 1.0}]
    write_json(
        run.path / "summary.json",
        {"arms": summary, "prerequisites": ["Six episodes."], "probes": probes, "drift": [probes, probes]},
    )
    rows: list[dict[str, Any]] = [
        {"event": "update", "stage": "rl", "index": at, "metrics": {"reward": at / 8, "loss": None}} for at in range(4)
    ]
    judged = {"judge_false_positive": 0.25, "judge_failed_n": 4.0, "judge_false_negative": 0.5, "judge_solved_n": 2.0}
    for name, outcomes in arms.items():
        played = [_episode(number, success, "real") for number, success in enumerate(outcomes)]
        TrajectoryStore(run.trajectories / f"eval-{name}.jsonl.gz").append(played)
        rows += [{"event": "rollout", "phase": f"eval {name}", "task": one.task.id} for one in played]
        rows.append({"event": "eval", "arm": name, "split": "test", "successes": outcomes, "metrics": {}})
        rows.append({"event": "eval", "arm": f"judge of {name}", "split": "test", "successes": [], "metrics": judged})
    for name in ("sft", "rl", "eval"):
        cost = {"metrics": {"tokens_generated": 10.0, "browser_steps": 4.0}, "time.seconds": 2.5}
        rows.append({"event": "stage", "name": name, "key": name[:2], "time.status": "done", **cost})
    rows += [{"event": "error", "where": "audit rl", "error": "it fell"}, {"event": "run_end", "time.seconds": 9.5}]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name, source in (("dreams", "dream"), ("demos", "expert")):
        TrajectoryStore(run.trajectories / f"{name}.jsonl.gz").append([_episode(at, at % 2, source) for at in range(6)])
    run.finish()
    return folder


def _episode(number: int, success: float, source: Any) -> Trajectory:
    pages = [
        Observation(f"http://shop.test/{at}", (Node(1, "heading", f"Page {at}"), Node(2, "link", "Next")), "Shop")
        for at in range(2)
    ]
    steps = (
        Step(pages[0], action=Action("click", 2), reasoning="On.", reply="On. click [2]", logprobs=(-0.5, -0.25)),
        Step(pages[1], action=Action("stop", text="7"), info={"own": (1, 2.5)}),
    )
    judged = Judgement(success, 0.75, "it looks right")
    task = Task(f"task-{number}", f"Find number {number}", "http://shop.test/0")
    facts = EpisodeFacts(verdict=Judgement(success), update=number)
    return Trajectory(task.id, task, steps, pages[1], source, "stop", float(success), judged, group="g", facts=facts)


def _make_transitions(path: Path, episodes: TrajectoryStore) -> Path:
    first = [episode.steps for episode in episodes]
    steps = [
        Transition(one.observation, one.action, two.observation, "task", "site")
        for (one, two, *_) in (steps for steps in first if len(steps) > 1)
        if one.action is not None
    ]
    TransitionStore(path).append(steps)
    return path


def _make_cache(root: Path, episodes: Path) -> Path:
    with StageCache(root).stage("sft", "k", settings={"steps": 3, "rate": 0.5}) as stage:
        (stage.folder / "model").mkdir()
        (stage.folder / "model" / "weights").write_bytes(bytes(range(256)))
        shutil.copyfile(episodes, stage.folder / "trajectories.jsonl.gz")
        stage.commit(cost={"tokens": 5.0})
    return stage.folder


def _make_matrix(path: Path) -> MatrixFolder:
    plan, folder = plan_of(read_matrix("smoke", seeds=(0, 1, 2))), MatrixFolder(path)
    folder.write_plan(plan)
    for at, cell in enumerate(plan.cells):
        if at:
            _make_run(folder.cell(cell.id), cell.seed)
        outcome = (
            {"status": "done", "exit": 0, "seconds": 5.25} if at else {"status": "failed", "exit": 1, "seconds": 2.5}
        )
        write_json(folder.outcome(cell.id), with_sum(outcome))
    return folder


def _written_by_people(folder: Path) -> list[Kind]:
    """Recipes, matrices and task files; what they say is theirs."""
    recipe, matrix = folder / "recipe.toml", folder / "matrix.toml"
    folder.mkdir()
    text = "extends = 'smoke'\n[run]\nseed = 3\n[rl]\nlr = 1e-4\nupdates = 2\n[opt]\nclip_low = 3e-4\n"
    recipe.write_text(text, encoding="utf-8")
    text = "[matrix]\nbase = 'smoke'\nseeds = [0, 1]\n[matrix.axes]\n'dream.horizon' = [3, 4]\n"
    matrix.write_text(text, encoding="utf-8")
    evaluation = {"eval_types": ["string_match", "url_match"], "reference_answers": {"exact_match": "42"}}
    arena = {"task_id": 1, "sites": ["reddit"], "intent": "Do it", "start_url": "__REDDIT__", "eval": evaluation}
    write_json(folder / "tasks.json", [arena, {**arena, "task_id": 2, "require_login": True, "geolocation": None}])
    voyager = {"web_name": "Shop", "id": "Shop--0", "ques": "Find it", "web": "http://shop.test/"}
    lines = [json.dumps({**voyager, "id": f"Shop--{at}"}) for at in range(3)]
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    answers = {"Shop": {"notice": "", "answers": [{"id": 0, "type": "golden", "ans": "7"}]}}
    write_json(folder / "reference_answer.json", answers)
    return [
        Kind("recipe", [recipe], lambda: resolve(recipe).tree(), False),
        Kind("matrix file", [matrix], lambda: [str(cell) for cell in plan_of(read_matrix(matrix)).cells], False),
        Kind("task file", [folder / "tasks.json"], lambda: _webarena(folder / "tasks.json"), False),
        Kind("task lines", _files(folder, "tasks.jsonl", "reference*"), lambda: _webvoyager(folder), False),
    ]


def _of_others(folder: Path) -> list[Kind]:
    """Demonstrations in the formats of other projects; what cannot be read of them is dropped and counted."""
    folder.mkdir()
    tree = "Tab 0 (current): Shop\n\n[1] RootWebArea 'Shop'\n\t[2] link 'Tea'\n"
    step = (
        "<h2>New Page</h2><h3 class='url'><a href=http://shop.test/>URL: http://shop.test/</a></h3>"
        f"<div class='state_obv'><pre>{tree}</pre><div>"
        "<div class='raw_parsed_prediction' style='x'><pre>On. ```{action}```</pre></div>"
        "<div class='parsed_action' style='x'><pre>{action}</pre></div>"
    )
    head = "<html><pre>task_id: 1\nintent: Find it\nsites: ['shop']\nstart_url: http://shop.test/\n</pre>"
    render = head + step.replace("{action}", "click [2]") + step.replace("{action}", "stop [7]")
    page = '<html><a id="1" href="/x">Tea</a></html>'
    trace = [
        {"trace_id": "a", "index": at, "target": "Find it", "html": page, "response": reply, "score": 1.0}
        for at, reply in enumerate(('do(action="Click", element="1")', 'exit(message="7")'))
    ]
    past = "PREVIOUS ACTIONS: 1: None"
    user = f"OBSERVATION:\n[1] RootWebArea 'Shop'\n\t[2] link 'Tea'\nURL: http://shop.test/\nOBJECTIVE: Find it\n{past}"
    rows = [{"id": "a", "prompt": user, "output": f"On. ```{action}```"} for action in ("click [2]", "stop [7]")]
    candidate = json.dumps({"backend_node_id": "1", "attributes": "{}"})
    operation = {"op": "CLICK", "original_op": "CLICK", "value": ""}
    action = {"cleaned_html": page, "operation": operation, "pos_candidates": [candidate], "action_uid": "u"}
    task = {"annotation_id": "a", "website": "shop", "confirmed_task": "Find it", "actions": [action, action]}
    texts = {
        "render_1.html": render,
        "trace.jsonl": "".join(json.dumps(row) + "\n" for row in trace),
        "nnetnav.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "mind2web.json": json.dumps([task]),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    formats = (("webarena", "render_1.html"), ("webarena", "trace.jsonl"), ("nnetnav", "nnetnav.jsonl"))
    return [
        Kind(f"import {name}", [folder / name], partial(_imported, kind, folder / name), False)
        for kind, name in (*formats, ("mind2web", "mind2web.json"))
    ]


def _imported(kind: str, path: Path) -> str:
    """Trajectories and transitions of a file, and what was left out; every verdict is a number from 0 to 1."""
    text = ""
    for whole in (True, False):
        store = path.with_name("imported.jsonl.gz")
        store.unlink(missing_ok=True)
        report = import_data(kind, path, store, trajectories=whole)
        kept: Store[Any] = TrajectoryStore(store) if whole else TransitionStore(store)
        items = list(kept)
        scores = [one.facts.verdict.score for one in items if whole and one.facts.verdict is not None]
        if not all(0 <= score <= 1 for score in scores):
            raise AssertionError(f"verdicts {scores}")
        text += f"{report} {items}"
    return text


def _server_reply(path: Path) -> Kind:
    """What an OpenAI-compatible server answers."""
    from openai.types.chat import ChatCompletion

    token = {"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}
    choice = {
        **{"index": 0, "finish_reason": "stop", "logprobs": {"content": [token, token], "refusal": None}},
        "message": {"role": "assistant", "content": "click [2]", "reasoning_content": "On."},
    }
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    write_json(path, {**head, "choices": [choice], "usage": usage})
    server = Server(model="m", price_in=2.0, price_out=3.0)

    def read() -> str:
        try:
            reply = read_reply(ChatCompletion.construct(**json.loads(path.read_text(encoding="utf-8"))))
        except MALFORMED as error:  # which the engine has words for
            raise ReplyError(str(error)) from None
        cost = cost_of(server, reply.prompt_tokens, reply.new_tokens)
        if not all(map(math.isfinite, (cost, reply.logprob or 0.0))):
            raise AssertionError(f"{reply} costs {cost}")
        return repr(reply)

    return Kind("server reply", [path], read, False)


def _files(folder: Path, *patterns: str) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]


def _copies(paths: Sequence[Path], folder: Path) -> list[Path]:
    folder.mkdir()
    return [Path(shutil.copyfile(path, folder / path.name)) for path in paths]


def _run(folder: Path) -> str:
    data = gather(folder)
    record = read_run(folder)
    text = closing_text(data) + render(data) + json.dumps(closing_json(data))
    with tempfile.TemporaryDirectory() as out:
        path = Path(out) / "x.jsonl.gz"
        write_results(path, collect([folder], "x"))
        text += repr([(run.record.judge, run.recipe, run.episodes) for run in read_results(path).runs])
    return text + repr(sorted(record.episodes.items())) + repr(record.judge) + repr(record.costs)


def _resumed(folder: Path) -> str:
    run = RunFolder(folder)
    recipe = run.recipe()
    choose_folder(recipe, out=folder, resume=True)
    open_run(recipe, out=folder, resume=True)
    return f"{run.status} {run.how_to_go_on} {_run(folder)}"


def _cached(root: Path) -> str:
    stages = cached_stages(root)
    folder = StageCache(root).find("sft", "k")
    if folder is None:
        raise DynawebError("it is made anew")
    return f"{len(stages)} {(folder / 'model' / 'weights').read_bytes()!r}"


def _stores(paths: Sequence[Path]) -> str:
    """Every record of stores. That nothing is there, or an unfinished write at the end, they tell by their size."""
    records: list[object] = []
    for path in paths:
        store = TransitionStore(path) if path.name.startswith("transitions") else TrajectoryStore(path)
        if store.torn or not len(store):
            raise DynawebError(f"{len(store)} records, and {store.torn} bytes are torn")
        records.append(list(store))
    return repr(records)


def _packed_run(paths: Sequence[Path], run: Path) -> str:
    """The stores alone, and as the episodes of a run."""
    text = _stores(paths)
    for path in paths:
        if not path.name.startswith("transitions"):
            shutil.copyfile(path, run / "trajectories" / path.name)
    return text + _run(run)


def _matrix(folder: MatrixFolder) -> str:
    outcome = results(folder.read_plan(), folder)
    if outcome.problems:
        raise DynawebError(str(outcome.problems))
    return matrix_text(outcome) + json.dumps(outcome.plain()) + repr(outcome.statuses)


def _webarena(path: Path) -> str:
    from dynaweb_env_webarena import WebarenaConfig
    from dynaweb_env_webarena.env import WebarenaSource

    config = WebarenaConfig(path=str(path), urls={"reddit": "http://reddit.test"})
    return repr(WebarenaSource(config, EnvironmentContext()).tasks("test", count=9, seed=0))


def _webvoyager(folder: Path) -> str:
    from dynaweb_env_webvoyager import WebvoyagerConfig
    from dynaweb_env_webvoyager.env import WebvoyagerSource

    config = WebvoyagerConfig(path=str(folder / "tasks.jsonl"))
    return repr(WebvoyagerSource(config, EnvironmentContext()).tasks("test", count=9, seed=0))


if __name__ == "__main__":
    sys.exit(main())
