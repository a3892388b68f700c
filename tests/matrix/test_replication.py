"""The replication: its cells, the order in which they run, and the page that raw results make."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from core_kit import Cli
from matrix_kit import Fakes

from dynaweb.compare.raw import Episode, RawResults, RawRun, read_results, write_results
from dynaweb.compare.records import RunRecord, judge_errors, named
from dynaweb.errors import ConfigError
from dynaweb.matrix import Plan
from dynaweb.matrix.plan import Matrix
from dynaweb.matrix.replication import LONGER, NOT_RUN, SFT, arms_of, page, reference, tables
from dynaweb.matrix.reproduce import filled, find
from dynaweb.report.data import Arm, Measure, ReportData, Stage
from dynaweb.stats import SCORE, estimate

FOLDER = Path(__file__).parents[2] / "examples" / "replication"
ARMS = ("DynaWeb with memory", LONGER, "prompted")
RATES = {"DynaWeb with memory": 0.7, LONGER: 0.5, "prompted": 0.05}
KINDS = ("trained template", "held-out template")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The example's script as a module."""
    spec = importlib.util.spec_from_file_location("replicate", FOLDER / "replicate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["replicate"] = module
    spec.loader.exec_module(module)
    return module


def run(label: str, seed: int, n: int = 40) -> RawRun:
    """A run of an arm, whose SFT solves 30 % and whose own arm what `RATES` says, of the same tasks in every arm."""
    tasks = random.Random(seed)
    difficulty = [tasks.random() for _ in range(n)]
    first = ("base", "the model as it is", "sft") if label == "prompted" else ("sft", "SFT, 200 updates", "sft")
    own = {LONGER: ("sft-long", "SFT, 400 updates", "sft"), "prompted": first}.get(
        label, ("dynaweb", "DynaWeb", "main")
    )
    rates = {first[0]: 0.3} | {own[0]: RATES[label]}
    episodes = {
        name: [Episode(f"t{seed}-{at}", float(one < rate), 3, 20, KINDS[at % 2]) for at, one in enumerate(difficulty)]
        for name, rate in rates.items()
    }
    arms = tuple(
        Arm(name, words, role, (tuple(one.success for one in episodes[name]),))  # type: ignore[arg-type]
        for name, words, role in dict.fromkeys((first, own))
    )
    exact = (1.0, 0.0, 1.0)
    dreams = label.startswith("DynaWeb")
    data = ReportData(
        title="made",
        arms=arms,
        stages=(Stage("rl", "done", cost={"browser_steps": 900.0, "tokens_generated": 5e4, "seconds": 120.0}),),
        fidelity=(Measure("Exact", estimate(SCORE, exact), "", "exact", exact),) if dreams else (),
        seed=seed,
    )
    metrics = {
        "judge_false_positive": 0.25, "judge_failed_n": 20.0, "judge_false_negative": 0.1, "judge_solved_n": 10.0
    }  # fmt: skip
    judged: dict[str, dict[str, float | None]] = {"dynaweb": dict(metrics)} if dreams else {}
    played = {
        name: named((one.success for one in of_arm), [one.task for one in of_arm]) for name, of_arm in episodes.items()
    }
    judge = {name: judge_errors(values) for name, values in judged.items()}
    record = RunRecord(Path("made"), seed, {}, data, played, judge, judged)
    return RawRun(f"{label}-{seed}", (("benchmark", "miniwob"), ("arm", label)), record, {}, episodes)


def made(*runs: RawRun) -> RawResults:
    matrix = Matrix(
        name="replication", seeds=(0, 1, 2), axes={"benchmark": ["miniwob", "roundup"], "arm": [*ARMS, "look-ahead"]}
    )
    plain = matrix.model_dump(mode="json", by_alias=True)
    return RawResults("replication", runs, ("benchmark", "arm"), "In small", "a command", plain)


WHOLE = made(*(run(label, seed) for label in ARMS for seed in (0, 1, 2)))


def cell(table: object, row: str, head: str) -> str:
    """The text of a cell by the row's first cell and the column's head."""
    columns = [column.head for column in table.columns]  # type: ignore[attr-defined]
    (cells,) = [cells for cells in table.rows if cells[0] == row]  # type: ignore[attr-defined]
    at = columns.index(head)
    return str(table.columns[at].text(cells[at]))  # type: ignore[attr-defined]


def test_every_arm_that_belongs_to_the_replication_is_told_and_none_is_invented() -> None:
    success, costs, judge, world = tables(WHOLE, "miniwob")
    assert [row[0] for row in success.rows] == [SFT, *ARMS, "look-ahead"]
    assert cell(success, "look-ahead", "seeds") == cell(costs, "look-ahead", "seeds") == NOT_RUN
    assert cell(success, "look-ahead", "Success %") == "-"
    assert [row[0] for row in judge.rows] == [row[0] for row in world.rows] == ["DynaWeb with memory"]
    assert cell(judge, "DynaWeb with memory", "False positives %").startswith("25.0 [")
    assert cell(world, "DynaWeb with memory", "Exact").startswith("0.667 [")
    assert cell(costs, "DynaWeb with memory", "Minutes").startswith("2.0")
    none = tables(WHOLE, "roundup")
    assert {cell(none[0], row, "seeds") for row in [SFT, *ARMS]} == {NOT_RUN} and len(none) == 2
    with pytest.raises(ConfigError, match="did you mean 'miniwob'"):
        tables(WHOLE, "miniwbo")


def test_differences_are_to_the_best_sft_and_groups_of_tasks_are_told_apart() -> None:
    (success, *_) = tables(WHOLE, "miniwob")
    head = f"against {LONGER}"
    assert cell(success, LONGER, head) == "reference"
    rows = {arm.label: arm for arm in arms_of(WHOLE, "miniwob")}
    gained = 100 * ((rows[ARMS[0]].success().value or 0) - (rows[LONGER].success().value or 0))
    assert cell(success, ARMS[0], head).startswith(f"{gained:+.1f} [") and cell(success, ARMS[0], "on") == "120"
    by_kind = [rows[ARMS[0]].success(kind) for kind in KINDS]
    assert [one.n for one in by_kind] == [60, 60]
    assert sum(one.value or 0 for one in by_kind) / 2 == pytest.approx(rows[ARMS[0]].success().value)
    assert cell(success, ARMS[0], "held-out template, %") == success.columns[6].text(by_kind[1])
    # A control that not all seeds have is no reference.
    partly = made(*(one for one in WHOLE.runs if (dict(one.labels)["arm"], one.seed) != (LONGER, 2)))
    best = reference(arms_of(partly, "miniwob"))
    assert best is not None and best.label == SFT
    assert cell(tables(partly, "miniwob")[0], LONGER, "seeds") == "2/3"
    assert reference(arms_of(made(), "miniwob")) is None


def test_the_page_is_made_of_the_file_and_renewed_by_reproduce(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "results").mkdir()
    write_results(tmp_path / "results" / "replication.jsonl.gz", WHOLE)
    stored = find("replication", tmp_path / "results")
    assert [run.episodes for run in stored.runs] == [run.episodes for run in WHOLE.runs]
    text = filled(page(stored), tmp_path / "results")
    assert text.count(NOT_RUN) >= 8 and "## roundup" in text and filled(text, tmp_path / "results") == text
    for benchmark in ("miniwob", "roundup"):
        assert all(table.to("markdown") in text for table in tables(WHOLE, benchmark))
    target = tmp_path / "replication.md"
    options = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "out"), "--no-figures"]
    done = cli("reproduce", "replication", *options, "--write", str(target))
    assert done.returncode == 0, done.stderr
    assert target.read_text() == text
    assert (tmp_path / "out" / "replication" / "replication.tex").is_file()
    with pytest.raises(ConfigError, match="is no replication"):
        other = replace(WHOLE, name="other", axes=("opt",))
        write_results(tmp_path / "results" / "other.jsonl.gz", other)
        filled(page(other), tmp_path / "results")


@pytest.mark.parametrize("benchmark", ["miniwob", "roundup", "sites"])
def test_every_cell_of_a_benchmark_composes_and_the_first_arms_come_first(script: ModuleType, benchmark: str) -> None:
    plan = script.plan(benchmark)
    names = [(dict(cell.labels)["arm"], cell.seed) for cell in plan.cells]
    assert names[:4] == [(ARMS[0], 0), (ARMS[0], 1), (ARMS[0], 2), ("filtered behaviour cloning", 0)]
    assert len(names) == len(set(names)) == 3 * 22 and plan.merged == 0
    recipes = {name: cell.recipe for (name, seed), cell in zip(names, plan.cells, strict=True) if seed == 0}
    real = {"miniwob": "miniwob", "roundup": "webarena", "sites": "sites"}[benchmark]
    grpo, ten = recipes["GRPO on real pages, as many steps"], recipes["GRPO on real pages, ten times as many"]
    main = recipes[ARMS[0]]
    assert grpo.env.name == recipes["WebRL on real pages"].env.name == real and main.env.name == "dream"
    rollouts = grpo.rl.updates * grpo.rl.tasks * grpo.rl.n
    assert rollouts == pytest.approx(main.explore.episodes + main.judge_fit.episodes, rel=0.02)
    assert ten.rl.updates == 10 * grpo.rl.updates
    judge = recipes["judge: of other tasks"].reward.config
    assert benchmark in judge.weights and main.reward.config.weights == ""
    assert main.eval.episodes * 3 >= 300


def test_only_what_is_chosen_runs_and_the_rest_stays_in_the_plan(script: ModuleType, tmp_path: Path) -> None:
    plan = script.plan("miniwob")
    cells = script.chosen(plan, ["prompted", "look-ahead"], [0, 2])
    assert [(dict(cell.labels)["arm"], cell.seed) for cell in cells] == [
        ("prompted", 0), ("prompted", 2), ("look-ahead", 0), ("look-ahead", 2)
    ]  # fmt: skip
    for arms, seeds, why in ((["promted"], [], "did you mean 'prompted'"), ([], [7], "7 is not among")):
        with pytest.raises(ConfigError, match=why):
            script.chosen(plan, arms, seeds)
    small = Plan(plan.matrix, plan.axes, plan.cells[:3])
    fakes = Fakes(small, tmp_path / "miniwob")
    assert fakes.run(only={small.cells[1].id}) == {small.cells[1].id: "done"}
    assert fakes.run(only={small.cells[0].id}) == {small.cells[0].id: "done"}, "the one that is done is still planned"
    states = [fakes.folder.status(cell).state for cell in fakes.folder.read_plan().cells]
    assert states == ["done", "done", "waiting"]
    raw = script.results(tmp_path, tmp_path / "replication.jsonl.gz")
    assert [(dict(run.labels)["benchmark"], run.seed) for run in raw.runs] == [("miniwob", 0), ("miniwob", 1)]
    write_results(tmp_path / "replication.jsonl.gz", raw)
    # Of another machine, where nothing of the first was kept.
    again = script.results(tmp_path / "empty", tmp_path / "replication.jsonl.gz")
    assert [run.id for run in again.runs] == [run.id for run in read_results(tmp_path / "replication.jsonl.gz").runs]
    assert cell(tables(again, "miniwob")[0], ARMS[0], "seeds") == "2/3"
    assert cell(tables(again, "miniwob")[0], "prompted", "seeds") == NOT_RUN


SLOW = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("replicate", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
script.own_command = lambda *words: ("-c", "import time; print('at work', flush=True); time.sleep(100)")
sys.exit(script.main(sys.argv[2:]))
"""


def test_when_time_is_up_cells_are_stopped_and_the_command_goes_on(tmp_path: Path) -> None:
    words = ["miniwob", "--arms", "prompted", "--seeds", "0", "--minutes", "0.05"]
    folders = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path)]
    command = [sys.executable, "-c", SLOW, str(FOLDER / "replicate.py"), *words, *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "time is up; go on with: " in done.stdout and "--minutes 0.05" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("arm=prompted, seed 0")
    assert not (tmp_path / "replication.jsonl.gz").exists(), "nothing is done, so that there is no result"
    wrong = [*command[:-4], "--arms", "promted", *folders]
    refused = subprocess.run(wrong, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2 and "did you mean 'prompted'" in refused.stderr
