"""Matrices: the grammar, validation before the first start, and the command line."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix_kit import plan
from typer.testing import CliRunner

from dynaweb.cli.app import tree as command_tree
from dynaweb.config import resolve
from dynaweb.errors import ConfigError, MissingError
from dynaweb.matrix import Matrix, Plan, plan_of, read_matrix, shipped_matrices
from dynaweb.matrix.plan import cell_id, parse_axis
from dynaweb.plugin import registry as plugins

GRAMMAR = """
[matrix]
base = "smoke"
seeds = [3, 4]
set = { "eval.episodes" = 5 }

[matrix.axes]
wm = ["delta", "full-state"]
anchor = [{ label = "none", "rl.bc_weight" = 0.0 }, { label = "some", "rl.bc_weight" = 0.1, "rl.bc_batch" = 3 }]

[[matrix.zip]]
"rl.tasks" = [2, 4]
"rl.n" = [8, 4]

[[matrix.when]]
if = { wm = "full-state", anchor = ["some"] }
set = { "wm_fit.steps" = 9 }

[[matrix.exclude]]
wm = "full-state"
"rl.tasks" = [4, 99]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(GRAMMAR, encoding="utf-8")
    return path


@cache
def shipped(name: str) -> Plan:
    """Composed once: a hundred recipes take a second."""
    return plan(name)


def test_a_grid_with_zip_when_and_exclude(file: Path) -> None:
    made = plan(file)
    assert made.axes == ("wm", "anchor", "rl.tasks", "rl.n")
    # (2 world models x 2 anchors x 2 zipped pairs - 2 excluded) x 2 seeds.
    assert len(made.cells) == 12
    assert [cell.seed for cell in made.cells] == [3] * 6 + [4] * 6
    for cell in made.cells:
        labels = dict(cell.labels)
        assert (labels["rl.tasks"], labels["rl.n"]) in {("2", "8"), ("4", "4")}
        assert (labels["wm"], labels["rl.tasks"]) != ("full-state", "4")
        assert (cell.recipe.rl.tasks, cell.recipe.rl.n) == (int(labels["rl.tasks"]), int(labels["rl.n"]))
        assert (cell.recipe.wm.name, cell.recipe.run.seed, cell.recipe.eval.episodes) == (labels["wm"], cell.seed, 5)
        both = (labels["wm"], labels["anchor"]) == ("full-state", "some")
        assert cell.recipe.wm_fit.steps == (9 if both else 2)
        assert cell.recipe.rl.bc_batch == (3 if labels["anchor"] == "some" else 2)


def test_settings_may_be_nested_tables_and_flags_everywhere(file: Path) -> None:
    text = file.read_text().replace('set = { "wm_fit.steps" = 9 }', "set = { wm_fit = { steps = 9 }, model = 'tiny' }")
    text = text.replace('set = { "eval.episodes" = 5 }', "set = { eval = { episodes = 5 }, agent = 'direct' }")
    file.write_text(text.replace('label = "some", "rl.bc_weight" = 0.1', 'label = "some", rl = { bc_weight = 0.1 }'))
    for cell in plan(file).cells:
        both = dict(cell.labels)["anchor"] == "some" and cell.recipe.wm.name == "full-state"
        assert (cell.recipe.wm_fit.steps, cell.recipe.eval.episodes) == (9 if both else 2, 5)
        assert cell.recipe.rl.bc_weight == (0.1 if dict(cell.labels)["anchor"] == "some" else 0.0)


def test_one_axis_at_a_time(file: Path) -> None:
    made = plan(file, mode="one-at-a-time", seeds=(0,))
    combos = ["/".join(value for _, value in cell.labels) for cell in made.cells]
    assert combos == ["delta/none/2/8", "full-state/none/2/8", "delta/some/2/8", "delta/none/4/4"]


def test_equal_runs_are_one_cell_and_ids_follow_the_recipe(file: Path) -> None:
    made = plan("smoke", axes=["rl.updates=2,3"], seeds=(0, 1))
    assert len({cell.id for cell in made.cells}) == 4
    # 2 is what the recipe says anyway: the id is that of the plain recipe, whatever matrix asks for it.
    assert made.cells[0].id == cell_id(resolve("smoke", seed=0)) == plan("smoke").cells[0].id
    elsewhere = {"web.workers": 3, "web.endpoint": "http://other.test:1", "web.proxy_port": 4001, "web.browser": "/x"}
    assert cell_id(resolve("smoke", overrides=elsewhere)) == made.cells[0].id
    values = [{"label": label, "rl.updates": 2} for label in ("a", "b")]
    merged = plan_of(Matrix.model_validate({"base": "smoke", "axes": {"x": values}}))
    assert (len(merged.cells), merged.merged) == (1, 1)


@pytest.mark.parametrize("name", sorted(shipped_matrices()))
def test_shipped_matrices_are_valid(name: str) -> None:
    made = shipped(name)
    assert made.matrix.description
    assert len(made.cells) == len(made.combinations()) * 3
    assert made.merged == 0


def test_the_papers_three_matrices() -> None:
    lengths = {cell.recipe.dream.horizon for cell in shipped("dream-length").cells}
    assert lengths == set(range(1, 9))
    shares = sorted({cell.recipe.rl.expert_share for cell in shipped("expert-share").cells})
    assert (shares[0], shares[-1]) == (0.0, 1.0) and {0.4, 0.5} <= set(shares)
    models = {(cell.recipe.wm.name, cell.recipe.wm_fit.steps > 0) for cell in shipped("world-model").cells}
    assert models == {(name, trained) for name in ("delta", "full-state") for trained in (True, False)}
    offered = {name for name in plugins.current().names("opt")}
    assert {cell.recipe.opt.name for cell in shipped("optimizers").cells} == offered


values = st.one_of(st.integers(-99, 99), st.booleans(), st.text("abc ,'=[]", max_size=5), st.lists(st.integers(0, 9)))


@given(st.lists(values, min_size=1, max_size=4))
def test_any_values_can_be_an_axis_on_the_command_line(wanted: list[Any]) -> None:
    text = ",".join(json.dumps(value) for value in wanted)
    assert parse_axis(f"a.b={text}") == ("a.b", wanted)


def test_bare_words_are_text_and_commas_in_brackets_do_not_separate() -> None:
    assert parse_axis("wm=delta,full-state") == ("wm", ["delta", "full-state"])
    assert parse_axis("controls.sft_steps=[1,2],[]") == ("controls.sft_steps", [[1, 2], []])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("wm=delta,detla", "wm=detla: --"),
        ("rl.updates=1,two", "rl.updates = 'two'"),
        ("rl.updats=1,2", "did you mean 'updates'"),
        ("seed=1,2", "seeds are no axis"),
        ("wm=delta,delta", "has a value twice"),
        ("wm.max_new_tokens=8,9,8", "has a value twice"),
        ("wm=", "write it as NAME=VALUE,VALUE"),
        ("wm", "write it as NAME=VALUE,VALUE"),
        ("rl.n=two,three", "rl.n=three: "),
    ],
)
def test_nothing_starts_when_a_cell_is_not_valid(change: str, message: str) -> None:
    with pytest.raises((ConfigError, MissingError)) as caught:
        plan("smoke", axes=[change])
    assert message.replace("--", "overrides") in str(caught.value)


def test_nothing_that_is_given_twice_is_dropped_silently() -> None:
    with pytest.raises(ConfigError, match="axis 'wm' is given twice; list all its values in one --axis"):
        read_matrix("smoke", axes=["wm=delta", "wm=full-state"])
    for seeds in ((0, 0), (1, 0, 1)):
        with pytest.raises(ConfigError, match="more than once, which would be the same run; give each seed once"):
            read_matrix("smoke", seeds=seeds)
    # What the file says is replaced, not given twice.
    assert read_matrix("world-model", axes=["wm=delta"]).axes["wm"] == ["delta"]


def test_a_problem_of_many_cells_is_said_once() -> None:
    for axes, where in (
        (["wm=delta,full-state", "opt=gspo,grpo", "rl.updats=1,2"], "every cell"),
        (["wm=delta,full-state", "opt=gspo,grpo", "reward=self-assess,orn"], "and 1 more"),
    ):
        with pytest.raises((ConfigError, MissingError)) as caught:
            plan("smoke", axes=axes, seeds=(0, 1))
        assert str(caught.value).count("did you mean") == 1 and where in str(caught.value)
        assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = [3, 4]", "seeds = []", "matrix.seeds"),
        ("seeds = [3, 4]", "seeds = [3, 4, 3]", "seeds 3, 4, 3 (matrix.seeds, --seeds) have 3 more than once"),
        ("seeds", "sedes", "did you mean 'seeds'"),
        ('"rl.n" = [8, 4]', '"rl.n" = [8]', "different lengths"),
        ('if = { wm = "full-state"', 'if = { wn = "full-state"', "'wn', which is no axis; did you mean 'wm'"),
        ('"rl.n" = [8, 4]', '"rl.n" = [8, 4]\nwm = ["delta", "delta2"]', "axis 'wm' is there twice"),
        ('"eval.episodes" = 5', '"rl.tasks" = 5', "set for every cell and by axis 'rl.tasks' too"),
        ('label = "none", ', "", "a value that is a table needs a label"),
        ('base = "smoke"', 'base = "smoke"\nmax_cells = 5', "12 cells (2 seeds), more than max_cells = 5"),
        ('"rl.tasks" = [4, 99]', "", "has no cell"),
        ('base = "smoke"', 'base = "nothing.toml"', "nothing.toml does not exist"),
    ],
)
def test_mistakes_in_the_file_are_named(file: Path, old: str, new: str, message: str) -> None:
    text = file.read_text().replace(old, new, 1)
    if message == "has no cell":
        text = text.replace('[[matrix.exclude]]\nwm = "full-state"', '[[matrix.exclude]]\nwm = ["delta", "full-state"]')
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        plan(file)
    assert message in str(caught.value)


def test_what_is_no_matrix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no matrix or recipe is called 'world-modle'; did you mean 'world-model'"):
        read_matrix("world-modle")
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "smoke"\n[rl]\nn = 4\n')
    (cell,) = plan(recipe).cells
    assert cell.recipe.rl.n == 4


def test_the_command_line(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def cli(*arguments: str) -> Any:
        return CliRunner().invoke(command_tree(), arguments)

    done = cli("matrix", "show", "study.toml", "--seeds", "7")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["cell", "seed", "wm", "anchor", "rl.tasks", "rl.n"]
    assert "6 cells on smoke" in done.stdout
    shown = json.loads(cli("matrix", "show", "smoke", "--axis", "wm=delta,full-state", "--json").stdout)
    assert [cell["recipe"]["wm"]["name"] for cell in shown["cells"]] == ["delta", "full-state"]
    done = cli("matrix", "show", "smoke", "--axis", "wm=delta,detla")
    assert done.exit_code == 3
    assert "none was started" in done.stderr and "did you mean 'delta'" in done.stderr
    axes = ("--axis", "wm=detla", "--axis", "rl.n=2,3,4,5", "--axis", "rl.tasks=1,2", "--seeds", "0,1")
    done = cli("matrix", "show", "smoke", *axes)
    # One message for the eight combinations, which all have it.
    assert done.stderr.count("did you mean 'delta'") == 1 and "every cell" in done.stderr
    assert cli("matrix", "show", "smoke", "--seeds", "1,x").exit_code == 2
    done = cli("matrix", "show", "smoke", "--seeds", "0,0")
    assert done.exit_code == 2 and "seeds 0, 0 (matrix.seeds, --seeds) have 0 more than once" in done.stderr
    done = cli("matrix", "run", "smoke", "--measure", "element_f2")
    assert done.exit_code == 2
    assert "no measure is called 'element_f2'; did you mean 'element_f1'" in done.stderr
    assert "world-model" in cli("matrix", "list").stdout
    states = json.loads(cli("matrix", "status", "study.toml", "--json").stdout)
    assert {state["state"] for state in states} == {"waiting"}
    assert not (tmp_path / "runs").exists()
