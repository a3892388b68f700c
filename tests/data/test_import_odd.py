"""Importers and rows that no project writes: each is counted and left out, and takes neither long nor much memory."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import resource
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_data_import import CART, HOME, StepInfo, load, nnetnav, obs, render_file, render_step, write_step

from dynaweb.data.importers import ImportReport, read_trajectories
from dynaweb.data.importers.episodes import NO_NUMBER
from dynaweb.data.importers.pickles import DAMAGED, SECONDS, TOO_LARGE
from dynaweb.data.importers.rows import NO_OBJECT, TOO_LONG, UNPACKS, rows_of
from dynaweb.data.importers.steps import NO_PAGE, do_action, gym_action, webarena_action
from dynaweb.data.store import TransitionStore

pytestmark = pytest.mark.filterwarnings("ignore")


def reduced(*calls: str) -> bytes:
    """A pickle of the builtin calls `name(argument)`, the innermost first, whose argument is the number."""
    *names, number = calls
    text = "".join(f"cbuiltins\n{name}\n" for name in reversed(names))
    return text.encode() + f"I{number}\n".encode() + b"\x85R" * len(names) + b"."


def doubled(levels: int, kind: bytes) -> bytes:
    """A tuple or list that holds the same one twice, and so on: small, and of 2 ** levels parts."""
    twice = {b"t": b")", b"l": b"]"}[kind]
    again = {b"t": b"h\x00h\x00\x86q\x00", b"l": b"](h\x00h\x00eq\x00"}[kind]
    return b"\x80\x02" + twice + b"q\x00" + again * levels


@pytest.mark.parametrize("score", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400, '"1"', "[1]"])
def test_a_score_that_is_no_number_is_no_verdict(score: str, tmp_path: Path) -> None:
    """Nor does it count as nobody's: then the episode would be a success."""
    page = '<html><a id="1" href="/x">Tea</a></html>'
    rows = [
        {"trace_id": "a", "index": at, "target": "Find it", "html": page, "response": reply, "score": 1}
        for at, reply in enumerate(('do(action="Click", element="1")', 'exit(message="7")'))
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "trace.jsonl").write_text(text)
    assert len(list(read_trajectories("webarena", str(tmp_path), ImportReport()))) == 1
    (tmp_path / "trace.jsonl").write_text(text.replace('"score": 1', f'"score": {score}'))
    report = ImportReport()
    assert list(read_trajectories("webarena", str(tmp_path), report)) == []
    assert NO_NUMBER in str(report)


BOMBS: dict[str, bytes] = {
    "an endless set": reduced("range", "9999999999").join([b"cbuiltins\nset\n", b""])[:-1] + b"\x85R.",
    "many bytes": reduced("bytearray", "99999999999"),
    "announced bytes": b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".",
    "a far place in the memo": b"\x80\x02]r\xff\xff\xff\xff.",
    "a key of many parts": b"\x80\x02}" + doubled(60, b"t")[2:] + b"K\x01s.",
    "a page of many parts": b"",
    "deep": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "no pickle": b"not a pickle",
    "cut": pickle.dumps(StepInfo(0, obs(HOME)))[:-20],
    "empty": b"",
    "a number": pickle.dumps(10**5000),
}


def tree_bomb() -> bytes:
    """A step whose tree holds one list 2 ** 60 times."""
    nodes: list[Any] = []
    for _ in range(60):
        nodes = [nodes, nodes]
    return pickle.dumps(StepInfo(1, obs(None, axtree_object={"nodes": nodes})))


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_takes_no_more_than_its_share_and_the_others_are_read(name: str, tmp_path: Path) -> None:
    write_step(tmp_path, StepInfo(0, obs(HOME), action="click('23')"))
    data = BOMBS[name] or (tree_bomb() if "page" in name else b"")
    (tmp_path / "step_1.pkl.gz").write_bytes(gzip.compress(data))
    write_step(tmp_path, StepInfo(2, obs(HOME), action="click('23')"))
    write_step(tmp_path, StepInfo(3, obs(CART)))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    transitions, report = load("browsergym", tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert [one.info["step"] for one in transitions] == [2]
    assert sum(report.dropped[reason] for reason in (DAMAGED, TOO_LARGE, NO_PAGE)) == 1, report
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS + 6


def test_what_unpacks_to_far_more_than_it_is_is_left_out(tmp_path: Path) -> None:
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(2**24)
    (tmp_path / "step_0.pkl.gz").write_bytes(b"".join(pack.compress(block) for _ in range(6)) + pack.flush())
    assert load("browsergym", tmp_path)[1].dropped == {TOO_LARGE: 1}


def test_a_device_or_pipe_in_the_place_of_a_file_is_none(tmp_path: Path) -> None:
    write_step(tmp_path, StepInfo(0, obs(HOME), action="click('23')"))
    (tmp_path / "step_1.pkl.gz").symlink_to("/dev/zero")
    assert load("browsergym", tmp_path)[1].read == 1


def rows(path: Path, text: str) -> tuple[list[Any], dict[str, int]]:
    path.write_text(text, encoding="utf-8")
    report = ImportReport()
    return list(rows_of(str(path), report)), dict(report.dropped)


@pytest.mark.parametrize(
    ("text", "count", "dropped"),
    [
        ('[{"a": 1}, {"b": [2, {}]},\n{"c": "]"}]', 3, {}),
        ("[]", 0, {}),
        ('[{"a": 1}, 7, "x", null]', 1, {NO_OBJECT: 3}),
        ('[{"a": 1}, {"b": ', 1, {"its file is no valid JSON": 1}),
        ("[" * 200_000, 0, {"its file is no valid JSON": 1}),
        ('[{"a": ' + "[" * 200_000 + "]" * 200_000 + "}]", 0, {"its file is no valid JSON": 1}),
        ('[{"a": ' + "9" * 5000 + "}]", 1, {}),
        ('[{"a": "' + "x" * 100_000 + '"}, {"b": "' + "\\n" * 100_000 + '"}]', 2, {}),
    ],
)
def test_an_array_is_read_a_row_at_a_time(text: str, count: int, dropped: dict[str, int], tmp_path: Path) -> None:
    found, why = rows(tmp_path / "a.json", text)
    assert (len(found), why) == (count, dropped)


def test_a_line_that_is_deep_or_too_long_is_counted_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynaweb.data.importers.rows.LARGEST", 1000)
    long = json.dumps({"a": "x" * 5000})
    text = "\n".join(["[" * 900, '{"a": ' * 100, long, '{"b": 1}', "7", long, '{"c": 2}'])
    found, why = rows(tmp_path / "a.jsonl", text)
    assert found == [{"b": 1}, {"c": 2}] and why == {NO_OBJECT: 3, TOO_LONG: 2}
    monkeypatch.setattr("dynaweb.data.importers.rows.BLOCK", 100)
    found, why = rows(tmp_path / "a.json", f'[{{"b": 1}}, {long}, {{"c": 2}}]')
    assert found == [{"b": 1}] and why == {TOO_LONG: 1}


def test_parquet_that_is_cut_or_repeats_a_large_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"prompt": ["x" * 100_000] * 100}), path)
    report = ImportReport()
    monkeypatch.setattr("dynaweb.data.importers.rows.LARGEST", 50_000)
    assert list(rows_of(str(path), report)) == [] and report.dropped == {TOO_LONG: 100}
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], b"PAR1" + data[8:], b""):
        path.write_bytes(damaged)
        report = ImportReport()
        list(rows_of(str(path), report))
        assert report.dropped


def test_parquet_that_says_little_of_its_sizes_fills_no_memory(tmp_path: Path) -> None:
    """3 kB: one value of 100 MiB that all rows have, in a file that calls them small. Read with a limit on memory."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, size = tmp_path / "a.parquet", 100 * 2**20
    one = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 64, pyarrow.int32()), pyarrow.array(["a" * size]))
    table = pyarrow.table({"prompt": one})
    parquet.write_table(table, path, compression="zstd", store_schema=False, dictionary_pagesize_limit=2**31 - 1)
    told = parquet.ParquetFile(path).metadata.row_group(0).total_byte_size
    length = _varint(told)
    assert told > size and path.read_bytes().count(length) == 2  # of the column and of the rows
    path.write_bytes(path.read_bytes().replace(length, b"\x82" + b"\x80" * (len(length) - 2) + b"\0"))
    assert parquet.ParquetFile(path).metadata.row_group(0).total_byte_size == 1
    code = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)
        from dynaweb.data.importers import ImportReport
        from dynaweb.data.importers.rows import rows_of
        print(len(list(rows_of({str(path)!r}, report := ImportReport()))), report.read)
        print(report)
    """
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert time.monotonic() - begun < 60
    assert done.stdout.startswith("0 64\n") and UNPACKS in done.stdout and TOO_LONG in done.stdout


def _varint(number: int) -> bytes:
    """As Thrift's compact protocol writes a number of its type i64."""
    left, parts = number * 2, []
    while left > 127:
        parts.append(left & 127 | 128)
        left >>= 7
    return bytes([*parts, left])


def test_parquet_whose_footer_lies_is_counted(tmp_path: Path) -> None:
    """Each byte of the footer, changed: rows that are lost, or that were never there, are told."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, rows = tmp_path / "a.parquet", [{"prompt": f"row {at}"} for at in range(50)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    silent = []
    for at in range(len(data) - 8 - size, len(data)):
        path.write_bytes(data[:at] + bytes([(data[at] + 26) % 256]) + data[at + 1 :])
        report = ImportReport()
        got = [row.get("prompt") for row in rows_of(str(path), report)]
        if len(got) != len(rows) and not report.dropped:
            silent.append((at, len(got)))
    assert silent == []


ODD: tuple[Any, ...] = (
    *(None, True, -1, 0.5, 10**400, "", "x", "\ud800", "\x00", "(" * 500),
    *([], {}, [None], [[]], {"a": None}),
)


def changed(value: Any, rng: random.Random) -> Any:
    """The same with one odd value somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return {**value, key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(ODD)


def mind2web() -> dict[str, Any]:
    page = "<html><body><a backend_node_id='1' href='/'>Go</a><input backend_node_id='2'></body></html>"
    action = {
        "cleaned_html": page,
        "operation": {"op": "CLICK", "value": ""},
        "pos_candidates": [{"backend_node_id": "1"}],
    }
    return {"annotation_id": "a", "website": "w", "confirmed_task": "Go", "actions": [action, action]}


def trace() -> dict[str, Any]:
    page = "<html><body><a id='1' href='/'>Go</a></body></html>"
    return {"trace_id": "t", "index": 0, "html": page, "response": 'do(action="Click", element="1")', "target": "Go"}


SAMPLES: dict[str, tuple[str, Callable[[], Any]]] = {
    "nnetnav": ("nnetnav", lambda: nnetnav("a", HOME, "click [23]")),
    "mind2web": ("mind2web", mind2web),
    "webarena": ("webarena", trace),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_rows_of_odd_types_are_counted_and_what_is_kept_can_be_stored(name: str, tmp_path: Path) -> None:
    format_, sample = SAMPLES[name]
    rng = random.Random(0)
    lines = [json.dumps(changed(sample(), rng)) for _ in range(250)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    transitions, report = load(format_, tmp_path / "a.jsonl")
    assert report.read >= 200 and report.dropped
    TransitionStore(tmp_path / "s.jsonl.gz").extend(transitions)
    assert list(TransitionStore(tmp_path / "s.jsonl.gz")) == transitions


def test_steps_of_odd_types_are_counted(tmp_path: Path) -> None:
    rng = random.Random(0)
    root = {"nodeId": "1", "backendDOMNodeId": 1, "role": {"value": "RootWebArea"}, "name": {"value": "S"}}
    child = {**root, "nodeId": "2", "browsergym_id": "a", "role": {"value": "button"}, "childIds": ["1"]}
    tree = {"nodes": [{**root, "properties": [], "childIds": ["2"]}, child]}
    for at in range(120):
        page = changed(obs(HOME if at % 2 else None, axtree_object=tree), rng)
        write_step(tmp_path, StepInfo(at, page, action=rng.choice([*ODD, "click('23')"])))
    assert load("browsergym", tmp_path)[1].read == 120


TOKENS = (
    *("\n", " ", "\t", "[", "]", "'", '"', "\\", "`", "```", "=", "a", "a=", "a='", ' a="\\', " a='b'", ", a=b", "("),
    *("-", "[1] ", "[1] link 'x' ", "1: ", " where [1] is ", "\nURL: a", "\nURL: a\nOBJECTIVE: ", "OBSERVATION:\n"),
    *("\nPREVIOUS ACTIONS:\n", "<h3 class='url'><a href=", ">URL: ", "<div class='state_obv'><pre>", "</pre> "),
    *("<pre>", "<h2>New Page</h2>", "do(", 'do(a="', "click(", "1+", "a.", "<div>", "<a>"),
    *("&amp;", "<", "<div class='parsed_action'"),
)


@pytest.mark.parametrize("token", TOKENS)
def test_every_reader_is_linear_in_what_a_stranger_repeats(token: str, tmp_path: Path) -> None:
    text = token * (60_000 // len(token))
    page = HOME + "\n\t[9] link 'x'" + text + "!"
    start = time.monotonic()
    row = nnetnav("a", page, f"click [23]{text}") | {"prompt": text}
    more = nnetnav("b", HOME, "click [23]")
    more["messages"][1]["content"] += text
    (tmp_path / "n.jsonl").write_text("\n".join(map(json.dumps, (row, more, {"prompt": text, "output": f"```{text}"}))))
    load("nnetnav", tmp_path / "n.jsonl")
    (tmp_path / "render_1.html").write_text(render_file(render_step("http://x", text, text)) + text)
    load("webarena", tmp_path / "render_1.html")
    traced = [{**trace(), "html": text}, {**trace(), "response": f"do({text}"}, trace()]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, traced)))
    load("webarena", tmp_path / "t.jsonl")
    found = load_page()
    for read in (webarena_action, do_action, gym_action):
        read(text, found)
        read(f"click('23', {text}", found)
    assert time.monotonic() - start < 20


def load_page() -> Any:
    from dynaweb.data.importers.pages import from_axtree_text

    return from_axtree_text(HOME, "http://x.test/")


def test_the_process_that_unpickles_imports_nothing_of_ours() -> None:
    script = textwrap.dedent(
        """
        import runpy, sys
        from dynaweb.data.importers import pickles
        path = pickles.__file__
        before = {name for name in sys.modules if name.startswith("dynaweb")}
        runpy.run_path(path)
        assert before == {name for name in sys.modules if name.startswith("dynaweb")}
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True)
