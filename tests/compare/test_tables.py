"""Tables in every format: the same numbers, nothing of a label breaks out, and differences against any row."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from compare_kit import outcomes, run
from core_kit import Cli
from raw_kit import raw_matrix

from dynaweb.compare import compare
from dynaweb.compare.comparing import comparison_table, pairs_table
from dynaweb.compare.raw import write_results
from dynaweb.compare.tables import Column, Difference, Table, find_row, latex_text
from dynaweb.errors import ConfigError
from dynaweb.matrix.results import results_of
from dynaweb.matrix.table import matrix_table, matrix_text
from dynaweb.serve.comparisons import compared
from dynaweb.stats import Estimate

HOSTILE = '</td><script>x</script> | \\input{a} & 50% $x$ #1 _a^b~ {c} "q" `d` --opt\n--e\x00'
ROWS = (
    (HOSTILE, Estimate(0.675, 0.646, 0.702, 1080), 1080, "reference", None),
    ("plain", Estimate(0.5, None, None, 1), 1, Difference(Estimate(-0.041, -0.067, 0.017, 1080), True), 0.0004),
    ("none", Estimate(None, None, None, 0), 0, Difference(None), 0.052),
)
COLUMNS = (
    Column("opt"),
    Column("Success %", "estimate", 100, ".1f"),
    Column("n", "count"),
    Column("against x_y", "difference"),
    Column("p", "p"),
)
TABLE = Table("A & B", COLUMNS, ROWS, ("95 % intervals",), "a b")


def test_no_label_breaks_out_of_latex() -> None:
    text = TABLE.to("latex")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [line.count(" & ") for line in body] == [4, 4, 4, 4]
    assert "\\input" not in text and "\x00" not in text and "50\\% \\$x\\$ \\#1 \\_a\\textasciicircum{}b" in text
    assert r"\caption{A \& B}" in text and r"\label{tab:a-b}" in text and "95 \\% intervals" in text
    for number in (
        r"67.5 {\scriptsize [64.6, 70.2]}",
        r"$-$4.1 {\scriptsize [$-$6.7, $+$1.7]}$^{*}$",
        r"[--]",
        "$<$0.001",
    ):
        assert number in text, number
    rules = [line for line in text.splitlines() if line in (r"\toprule", r"\midrule", r"\bottomrule")]
    assert len(rules) == 3 and "|" not in text


def test_no_label_breaks_out_of_html_or_markdown() -> None:
    html = TABLE.to("html")
    assert "<script>" not in html and html.count("<tr>") == 4 and html.count("<td") == 15
    lines = TABLE.to("markdown").splitlines()
    assert [line.count("|") for line in lines[:5]] == [6] * 5


def test_csv_has_every_number_in_a_column_of_its_own() -> None:
    rows = list(csv.DictReader(io.StringIO(TABLE.to("csv"))))
    assert rows[0]["opt"] == HOSTILE
    assert {name: rows[1][name] for name in list(rows[1])[1:]} == {
        "Success %": "50", "Success % low": "", "Success % high": "", "n": "1", "against x_y": "-4.1",
        "against x_y low": "-6.7", "against x_y high": "1.7", "against x_y n": "1080", "against x_y marked": "true",
        "p": "0.0004",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a--b", "a-{}-b"), ("<1>", r"\textless{}1\textgreater{}"), ("x → y", r"x $\rightarrow$ y"), ("Größe", "Größe")],
)
def test_text_for_latex(text: str, shown: str) -> None:
    assert latex_text(text) == shown


def test_labels_open_no_tag_no_option_and_no_formula() -> None:
    rows = (("<img onerror=x>", 0.0004), ("[2cm]", 0.5), ("*", 0.5), ("=1+1", 0.5), ("-1", 0.5), ("-", 0.5))
    table = Table("T", (Column("opt"), Column("p", "p")), rows)
    assert "| &lt;img onerror=x&gt; | < 0.001 |" in table.to("markdown")
    lines = table.to("latex").splitlines()
    assert any(line.startswith("{[}2cm]") for line in lines) and any(line.startswith("{*} &") for line in lines)
    assert not any(line.startswith(("[", "*")) for line in lines)
    cells = [row[0] for row in csv.reader(io.StringIO(table.to("csv")))]
    assert cells == ["opt", "<img onerror=x>", "[2cm]", "*", "'=1+1", "-1", "-"]


def test_json_holds_what_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    write_results(path := tmp_path / "made.jsonl.gz", raw_matrix({"opt": ["a", "b"]}, lambda values: 0.6, n=20))
    done = cli("compare", str(path), "--to", "json", "--against", "opt=b, dynaweb", "--pairwise")
    assert done.returncode == 2 and "give one of the two" in done.stderr
    done = cli("compare", str(path), "--to", "json", "--pairwise")
    assert [pair["first"]["opt"] for pair in json.loads(done.stdout)["pairs"]] == ["a", "a"], done.stderr
    done = cli("compare", str(path), "--to", "json", "--against", "opt=b, DynaWeb")
    data = json.loads(done.stdout)
    assert data["against"] == {"opt": "b", "arm": "DynaWeb"} and sum("against" not in row for row in data["rows"]) == 1


def test_a_row_is_meant_by_what_only_it_has() -> None:
    rows = [{"opt": opt, "wm": wm} for opt in ("gspo", "grpo") for wm in ("delta", "full-state")]
    assert find_row("opt=grpo, wm=delta", rows) == find_row("grpo,delta", rows) == 2
    assert find_row("a=1", [{"a": "1"}, {"a": "1", "b": "2"}]) == 0
    with pytest.raises(ConfigError, match=r"fits several rows.*\n  opt=gspo, wm=delta\n  opt=grpo, wm=delta$"):
        find_row("wm=delta", rows)
    for text in ("wm=other", "", ","):
        with pytest.raises(ConfigError, match="is no row"):
            find_row(text, rows)


def test_differences_against_any_row_and_pairwise() -> None:
    raw = raw_matrix({"opt": ["a", "b", "c"]}, lambda values: {"a": 0.4, "b": 0.6, "c": 0.8}[values["opt"]])
    first, last = results_of(raw), results_of(raw, against="c")
    for one, other in ((first, last), (last, first)):
        assert one.reference is not None and other.reference is not None
        (against,) = (row.against for row in one.rows if row.labels == other.reference.labels)
        (back,) = (row.against for row in other.rows if row.labels == one.reference.labels)
        assert against is not None and back is not None and against.paired is not None and back.paired is not None
        assert against.paired.difference.value == pytest.approx(-(back.paired.difference.value or 0))
    assert "against opt=c" in matrix_text(last) and last.plain()["against"] == {"opt": "c"}
    pairs = first.pairs()
    assert [(pair.first.label, pair.second.label) for pair in pairs] == [
        ("opt=a", "opt=b"), ("opt=a", "opt=c"), ("opt=b", "opt=c"),
    ]  # fmt: skip
    assert {pair.versus.comparisons for pair in pairs} == {3}
    assert "corrected for 3 comparisons (Bonferroni)" in matrix_text(first, pairwise=True)
    with pytest.raises(ConfigError, match="is no row of the table"):
        results_of(raw, against="d")


def test_one_statement_stands_beside_a_difference() -> None:
    results = results_of(raw_matrix({"opt": ["a", "b"]}, lambda values: 0.5 + 0.1 * (values["opt"] == "b")))
    assert "McNemar" not in matrix_text(results) and "McNemar p" in matrix_text(results, full=True)
    assert [column.head for column in matrix_table(results, full=True).columns][-1] == "McNemar p"


def lengths(tmp_path: Path, of: dict[int, int], **settings: object) -> list[Path]:
    """Runs whose longer SFT has so many updates, by seed."""
    folders = []
    for seed, steps in of.items():
        folder = run(tmp_path / f"{seed}-{len(settings)}", seed, outcomes(seed, 0.7, 40), **settings)
        summary = json.loads((folder / "summary.json").read_text())
        longer = {"name": "sft-long", "label": f"SFT, {steps} updates", "role": "sft"}
        played = list(outcomes(seed, 0.6, 40).values())
        rows = [
            json.dumps({"event": "rollout", "phase": "eval sft-long", "task": task}) for task in outcomes(seed, 1, 40)
        ]
        with (folder / "metrics.jsonl").open("a") as file:
            file.write("\n".join(rows) + "\n")
        summary["arms"].insert(1, longer | {"outcomes": [played]})
        (folder / "summary.json").write_text(json.dumps(summary))
        folders.append(folder)
    return folders


def test_sft_of_different_lengths_is_never_one_arm(tmp_path: Path) -> None:
    comparison = compare([*lengths(tmp_path, {0: 60, 1: 120}), *lengths(tmp_path, {0: 60, 1: 30}, lr=1)])
    assert list(comparison.arms) == ["sft", "sft-long: SFT, 60 updates", "dynaweb"]
    (first, second) = comparison.rows("sft-long: SFT, 60 updates")
    assert (first.success.n, second.success.n, list(first.played)) == (40, 40, [0])
    assert "not in all groups, success %: SFT, 120 updates in A (seeds 1)" in str(comparison).replace("\n", " ")
    for row in comparison.rows():
        assert len({arm.label for one in row.group.runs if one.seed in row.played and (arm := one.arm(row.arm))}) == 1


def test_the_page_of_a_comparison_has_an_arm_for_each_length(tmp_path: Path) -> None:
    folders = [*lengths(tmp_path, {0: 60, 1: 120}), *lengths(tmp_path, {0: 60, 1: 30}, lr=1)]
    page = compared({folder.name: folder for folder in folders})
    assert list(page.arms) == ["main", "sft", "sft-long: SFT, 60 updates"]
    assert [group.success["sft-long: SFT, 60 updates"].n for group in page.groups] == [40, 40]
    pair = page.pairs["sft-long: SFT, 60 updates"][0, 1]
    assert pair is not None and pair[0].difference.n == 40
    # Of one group all arms are there, each under its own label.
    (tmp_path / "alone").mkdir()
    alone = compared({folder.name: folder for folder in lengths(tmp_path / "alone", {0: 60, 1: 120})})
    assert list(alone.arms.values()) == ["sft", "SFT, 60 updates", "SFT, 120 updates", "dynaweb"]
    assert [alone.groups[0].success[arm].n for arm in alone.arms] == [80, 40, 40, 80]


def test_an_sft_of_several_lengths_is_a_reference_among_several_groups(tmp_path: Path) -> None:
    comparison = compare([*lengths(tmp_path, {0: 60, 1: 120}), *lengths(tmp_path, {0: 60, 1: 120}, lr=1)])
    name = "rl.lr=1, arm=SFT, 60 updates or SFT, 120 updates, each seed's own"
    reference = comparison.reference(name)
    assert reference is not None and list(reference.played) == [0, 1] and len(comparison.table_rows()) == 8
    assert all(one is not None for one in comparison.differences_of_rows(name))


def test_one_group_compares_its_arms_and_names_what_it_joins(tmp_path: Path) -> None:
    comparison = compare(lengths(tmp_path, {0: 60, 1: 120}))
    table = comparison_table(comparison)
    labels = [row[0] for row in table.rows]
    joined = "SFT, 60 updates or SFT, 120 updates, each seed's own"
    assert labels == ["sft", "SFT, 60 updates", "SFT, 120 updates", joined, "dynaweb"]
    reference = comparison.reference()
    assert reference is not None and reference.label == joined and list(reference.played) == [0, 1]
    assert len(pairs_table(comparison).rows) == 10


def test_the_commands_write_every_format(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl.gz"
    write_results(path, raw_matrix({"opt": ["a", "b"]}, lambda values: 0.6, n=20))
    marks = {
        "latex": r"\toprule",
        "csv": "opt,seeds,Success %",
        "html": "<table>",
        "markdown": "| --- |",
        "json": '"axes"',
    }
    for command in (("matrix", "table"), ("compare",)):
        for format, mark in marks.items():
            done = cli(*command, str(path), "--to", format)
            wanted = '"arms"' if command == ("compare",) and format == "json" else mark.replace("opt,seeds", "opt,")
            assert done.returncode == 0 and wanted.partition(",S")[0] in done.stdout, (command, format, done.stderr)
    done = cli("matrix", "table", str(path), "--to", "excel")
    assert done.returncode == 2 and "no table is written so" in done.stderr and "latex" in done.stderr
    done = cli("matrix", "table", str(path), "--to", "csv", "--json")
    assert done.returncode == 2 and "a table has one format, not csv and json" in done.stderr
