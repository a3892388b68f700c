"""Recipes: layers, origins, narrowing to plugins, hashes, and every problem told at once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from core_kit import TOY_CLASS, PackageMaker, toy_source
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dynaweb
from dynaweb.config import Recipe, resolve, restore, schema
from dynaweb.config.agreement import check_pictures
from dynaweb.config.keys import digest
from dynaweb.config.layers import HEADER, flatten, parse_set, shipped_recipes, toml_value, unflatten
from dynaweb.config.recipe import ORDER
from dynaweb.config.sections import MAX_PIXELS, ObservationSettings
from dynaweb.errors import ConfigError, DynawebError, MissingError, PluginError
from dynaweb.plugin import registry as plugins
from dynaweb.plugin.registry import current
from dynaweb.runs.folder import saved


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def problem(recipe: str | Path = "dynaweb", **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(recipe, **arguments)
    return str(caught.value)


def test_the_default_recipe_and_its_origins() -> None:
    recipe = resolve()
    names = {choice.kind: choice.name for choice in recipe.choices()}
    assert names == {"wm": "delta", "opt": "gspo", "reward": "self-assess", "env": "dream"}
    assert recipe.rl.expert_share == 0
    assert recipe.origins["rl.expert_share"] == "dynaweb.toml:rl.expert_share"
    assert recipe.origins["rl.lr"] == "default"
    assert set(recipe.origins) == set(recipe.flat())


def test_the_paper_preset_differs_only_where_it_says() -> None:
    default, paper = resolve("dynaweb"), resolve("dynaweb-paper")
    assert paper.rl.expert_share == 0.5
    assert paper.reward.config.model_dump()["model"] == "policy"
    assert {line.split(":")[0] for line in default.differences(paper)} == {
        "dream.memory",
        "dream.recall",
        "opt.eps",
        "reward.model",
        "reward.soft",
        "reward.threshold",
        "rl.bc_weight",
        "rl.expert_share",
    }
    assert paper.origins["reward.model"] == "dynaweb-paper.toml:reward.model"
    assert paper.origins["wm.name"] == "dynaweb.toml:wm.name"


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_resolves_and_says_what_it_is(name: str) -> None:
    assert len(resolve(name).description) > 20


def test_layers_in_order() -> None:
    recipe = resolve(
        "dynaweb-paper",
        overrides=["rl.expert_share=0.25", "eval.episodes=24", "controls.sft_steps=[10, 20]", "model.path=some/model"],
        thorough=True,
        seed=7,
        time_budget=2.5,
    )
    assert (recipe.rl.expert_share, recipe.origins["rl.expert_share"]) == (0.25, "--set")
    assert (recipe.eval.episodes, recipe.origins["eval.episodes"]) == (24, "--set")
    assert (recipe.controls.filtered_bc, recipe.origins["controls.filtered_bc"]) == (True, "--thorough")
    assert (recipe.run.seed, recipe.origins["run.seed"]) == (7, "--seed")
    assert (recipe.run.time_budget, recipe.origins["run.time_budget"]) == (2.5, "--time-budget")
    assert recipe.controls.sft_steps == (10, 20)
    assert recipe.model.path == "some/model"


def test_thorough_chooses_the_longer_sft_only_where_the_recipe_does_not_say() -> None:
    assert resolve("dynaweb").controls.sft_steps == (120,)
    assert resolve("dynaweb", thorough=True).controls.sft_steps == (60, 120)
    assert resolve(resolve("dynaweb"), thorough=True).controls.sft_steps == (60, 120)
    for name in ("prompted", "smoke", "sft"):
        assert resolve(name, thorough=True).controls.sft_steps == resolve(name).controls.sft_steps


DREAM_OF_STATIC = """
extends = "smoke"
[env.task_settings]
driver = "static"
train_sites = 3
"""


def test_settings_of_the_tasks_stay_when_their_own_environment_is_chosen(tmp_path: Path) -> None:
    """By a flag, by an override, by a recipe that extends another, and back again; the origin stays too."""
    (tmp_path / "mine.toml").write_text(DREAM_OF_STATIC)
    (tmp_path / "real.toml").write_text('extends = "mine.toml"\n[env]\nname = "sites"\n')
    mine = tmp_path / "mine.toml"
    origin = f"{mine}:env.task_settings.driver"
    whole = resolve(mine)
    for recipe in (
        resolve(mine, env="sites"),
        resolve(mine, overrides={"env.name": "sites"}),
        resolve(tmp_path / "real.toml"),
        resolve(whole, env="sites"),
    ):
        env = recipe.section("env")
        assert (env["name"], env["driver"], env["train_sites"]) == ("sites", "static", 3)
        assert recipe.origins["env.driver"].endswith("mine.toml:env.task_settings.driver")
        assert recipe.origins["env.templates"] == "default"
    assert resolve(mine, env="sites", overrides=["env.driver=chromium"]).section("env")["driver"] == "chromium"
    back = resolve(tmp_path / "real.toml", env="dream")
    assert back.section("env") == whole.section("env") and back.origins["env.task_settings.driver"] == origin
    assert resolve(mine, overrides=["env.tasks=sites"]).section("env") == whole.section("env")


@pytest.mark.parametrize(
    "change", [{"env": "miniwob"}, {"overrides": ["env.tasks=miniwob"]}, {"overrides": {"env.name": "webarena"}}]
)
def test_settings_of_the_tasks_go_with_their_environment(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(DREAM_OF_STATIC)
    assert "static" not in resolve(tmp_path / "mine.toml", **change).flat().values()


def test_overrides_as_a_mapping_flat_or_nested() -> None:
    recipe = resolve(overrides={"rl.updates": 3, "dream": {"horizon": 4}})
    assert (recipe.rl.updates, recipe.dream.horizon) == (3, 4)
    assert recipe.origins["dream.horizon"] == "overrides"
    again = resolve(recipe, overrides={"rl.n": 4}, seed=9)
    assert (again.rl.updates, again.rl.n, again.run.seed) == (3, 4, 9)
    assert again.origins["rl.updates"] == "overrides"


def test_plugin_sections_are_narrowed_to_the_chosen_plugin(package: PackageMaker) -> None:
    package("toy-package", toy_source(hook="dynaweb_rewards"), modules={"toys": TOY_CLASS})
    loaded = plugins.load()
    recipe = resolve("dynaweb-paper", overrides=["reward.size=5"], reward="toy", plugins=loaded)
    # The paper's `reward.model` belongs to the judge that was given up.
    assert recipe.reward.data() == {"name": "toy", "size": 5, "mode": "fast"}
    assert recipe.reward.code.startswith("toy-package 1.2 ")
    by_set = resolve("dynaweb-paper", overrides=["reward.size=5", "reward.name=toy"], plugins=loaded)
    assert by_set.reward.data() == recipe.reward.data()
    text = problem(overrides=["reward.sise=5"], reward="toy", plugins=loaded)
    assert text == "--set: no setting is called 'reward.sise'; did you mean 'size'? valid: mode, size"


def test_extends_finds_shipped_names_and_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", 'extends = "smoke"\n[rl]\nupdates = 9\nlr = 0.001\n')
    top = write(tmp_path / "top.toml", 'extends = "base.toml"\ndescription = "mine"\n[rl]\nlr = 0.002\n')
    recipe = resolve(top)
    assert (recipe.name, recipe.description) == ("top", "mine")
    assert (recipe.rl.updates, recipe.rl.lr, recipe.rl.tasks) == (9, 0.002, 2)
    assert recipe.origins["rl.lr"] == f"{top}:rl.lr"
    assert recipe.origins["rl.updates"] == f"{tmp_path / 'base.toml'}:rl.updates"
    assert recipe.origins["rl.tasks"] == "smoke.toml:rl.tasks"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[rl\nupdates = 1", "is not valid TOML.*line 1"),
        ("extends = 3", "extends must be the name or path of one recipe"),
        ('extends = "no-such-file.toml"', "no-such-file.toml does not exist"),
        ('extends = "broken.toml"', "extend each other in a circle"),
        ('extends = "dynaweb"\nrl = 5', r"rl must be a table such as \[rl\], not 5"),
        ('extends = "dynaweb"\nwm = "delta"', r"wm must be a table such as \[wm\]"),
        ('extends = "dynaweb"\n[rll]\nupdates = 1', "no section is called 'rll'; did you mean 'rl'"),
        ("[rl]\nupdates = 1", "wm.name is missing"),
        ('extends = "dynaweb"\n[wm]\nname = 3', "wm.name must be a name, not 3"),
    ],
)
def test_broken_recipe_files(text: str, cause: str, tmp_path: Path) -> None:
    path = write(tmp_path / "broken.toml", text)
    with pytest.raises(ConfigError, match=cause) as caught:
        resolve(path)
    assert "broken.toml" in str(caught.value) or "no-such-file" in str(caught.value) or "missing" in str(caught.value)
    assert caught.value.exit_code == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes('description = "é"'.encode("latin-1"))
    assert "is not UTF-8 text" in problem(tmp_path / "latin.toml")
    assert "does not exist; give a TOML file or a shipped name: awr, digirl, dreams-filtered-bc, dynaweb" in problem(
        tmp_path / "none.toml"
    )
    assert "no recipe is called 'dynawep'; did you mean 'dynaweb'" in problem("dynawep")


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("rl.updats=3", "--set: no setting is called 'rl.updats'; did you mean 'updates'? valid: bc_batch"),
        ("lr.updates=3", "--set: no section is called 'lr'; did you mean 'rl'"),
        ("rl.updates=many", "--set: rl.updates = 'many': input should be a valid integer"),
        ("rl.updates=-1", "--set: rl.updates = -1: input should be greater than or equal to 0"),
        ("rl.updates", "--set rl.updates: write it as path=value"),
        ("=3", "--set =3: write it as path=value"),
        ("rl..updates=3", "write it as path=value"),
        ("eval.split=train", "--set: eval.split = 'train': input should be 'validation' or 'test'"),
        ("data.experts.few=1", "--set: data.experts = {'few': 1}: input should be 'few' or 'all'"),
        ("controls.sft_steps=[1, 'x']", "--set: controls.sft_steps.1 = 'x': input should be a valid integer"),
        ("wm.nonsense=1", "--set: no setting is called 'wm.nonsense'"),
        ("rl.updates.deep=3", "rl.updates = {'deep': 3}: input should be a valid integer"),
    ],
)
def test_bad_overrides(override: str, text: str) -> None:
    assert text in problem(overrides=[override])


def test_all_problems_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.toml", 'extends = "dynaweb"\n[sft]\nsteps = "x"\n[web]\nbrowsr = "y"\n')
    text = problem(path, overrides=["rl.n=1", "nonsense"], wm="detla")
    assert text.startswith("5 problems:\n")
    for part in (
        "--wm: no world model is called 'detla'; did you mean 'delta'",
        "--set nonsense: write it as path=value",
        f"{path}:sft.steps: sft.steps = 'x'",
        f"{path}:web.browsr: no setting is called 'web.browsr'; did you mean 'browser'",
        "--set: rl.n = 1",
    ):
        assert f"\n  - {part}" in text


@pytest.mark.parametrize("name", ["run", "sft", "evaluate", "fit_world_model", "audit_judges", "collect", "resolve"])
def test_an_unknown_keyword_names_the_nearest_and_the_valid_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}\(\) has no argument 'sed'; did you mean 'seed'") as caught:
        getattr(dynaweb, name)("smoke", sed=1)
    assert all(
        word in str(caught.value) for word in ("wm", "thorough", *(["out", "progress"] if name != "resolve" else []))
    )


def test_an_unknown_plugin_alone_is_missing_not_misconfigured(package: PackageMaker) -> None:
    with pytest.raises(MissingError, match="--opt: no optimizer is called 'gspoo'; did you mean 'gspo'") as caught:
        resolve(opt="gspoo")
    assert caught.value.exit_code == 3
    package("bad-package", "1 / 0", entry_points={"bad": "bad_package"})
    with pytest.raises(PluginError, match=r"--opt: optimizer 'bad' \(package bad-package 1.2\) cannot be used"):
        resolve(opt="bad", plugins=plugins.load(warn=False))


def test_a_config_class_that_ignores_unknown_keys_gets_none(package: PackageMaker) -> None:
    package("toy-package", toy_source().replace('extra="forbid"', 'extra="ignore"'))
    text = problem(wm="toy", overrides=["wm.sizze=3"], plugins=plugins.load())
    assert "no setting is called 'wm.sizze'; did you mean 'size'" in text


def test_nested_settings_of_a_plugin(package: PackageMaker) -> None:
    code = toy_source().replace("size: int = 3", "inner: Inner = Inner()\n    note: str | None = None")
    inner = (
        'class Inner(BaseModel):\n    model_config = ConfigDict(extra="forbid")\n    depth: int = 1\n\n\nclass Config('
    )
    package("toy-package", code.replace("class Config(", inner, 1))
    loaded = plugins.load()
    recipe = resolve(wm="toy", overrides=["wm.inner.depth=4"], plugins=loaded)
    assert (recipe.flat()["wm.inner.depth"], recipe.origins["wm.inner.depth"]) == (4, "--set")
    assert tomllib.loads(recipe.to_toml())["wm"] == {"name": "toy", "inner": {"depth": 4}, "mode": "fast"}
    text = problem(wm="toy", overrides=["wm.inner.deph=4"], plugins=loaded)
    assert "no setting is called 'wm.inner.deph'; did you mean 'depth'? valid: depth" in text


def test_the_dump_is_a_recipe_again(tmp_path: Path) -> None:
    recipe = resolve("dynaweb-paper", overrides=['model.path=it\'s "here" \\ now', "rl.lr=1e-5"], seed=3)
    for text in (recipe.to_toml(), recipe.to_toml(origins=True)):
        again = resolve(write(tmp_path / "again.toml", text))
        assert again.flat() == recipe.flat()
    assert "lr = 1e-05  # --set" in recipe.to_toml(origins=True)


def test_a_saved_recipe_comes_back_with_its_origins() -> None:
    recipe = resolve("dynaweb-paper", seed=3, overrides=["rl.updates=4"])
    again = restore(saved(recipe))
    assert again == recipe
    assert again.origins == recipe.origins


def test_keys_depend_on_what_matters_and_on_nothing_else() -> None:
    recipe = resolve()
    other = resolve(overrides=["rl.lr=0.01"])
    assert recipe.settings_for("sft", "demos") == other.settings_for("demos", "sft")
    assert recipe.settings_for("rl") != other.settings_for("rl")
    assert recipe.settings_for("curriculum") == other.settings_for("curriculum")
    assert recipe.settings_for("sft") != resolve(seed=5).settings_for("sft")
    assert recipe.settings_for() == {}
    assert len(digest(recipe.settings_for("rl"))) == 20
    with pytest.raises(ConfigError, match="did you mean 'rl'"):
        recipe.settings_for("r1")  # type: ignore[arg-type]


def test_a_plugin_of_another_version_has_another_key(package: PackageMaker) -> None:
    keys = set()
    for version in ("1.0", "1.1"):
        package("toy-package", toy_source(), version=version)
        keys.add(digest(resolve(wm="toy", plugins=plugins.load()).settings_for("drift")))
        next(package.folder.glob("*.dist-info/entry_points.txt")).unlink()
        (info,) = package.folder.glob("*.dist-info")
        info.rename(info.with_suffix(".old"))
    assert len(keys) == 2


def test_recipes_print_what_was_changed() -> None:
    text = str(resolve(seed=4))
    assert text.splitlines()[0] == "Recipe dynaweb: wm=delta opt=gspo reward=self-assess env=dream model=tiny seed=4"
    assert "  run.seed = 4  (--seed)" in text
    assert "rl.lr" not in text


def test_the_schema_knows_sections_and_plugins() -> None:
    data = schema(plugins.load())
    assert list(data["properties"])[len(HEADER) :] == list(ORDER)
    assert data["properties"]["rl"]["properties"]["updates"]["type"] == "integer"
    judges = {one["properties"]["name"]["const"]: one for one in data["properties"]["reward"]["oneOf"]}
    assert judges["self-assess"]["properties"]["model"]["enum"] == ["base", "policy"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3.5", 3.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("few", "few"),
        ("", ""),
        ("2024-01-01", "2024-01-01"),
        ("1\nother = 2", "1\nother = 2"),
        ("a=b", "a=b"),
    ],
)
def test_values_of_set(text: str, value: object) -> None:
    assert toml_value(text) == value
    assert parse_set([f"a.b={text}"]) == ({"a.b": value if not isinstance(value, str) else toml_value(text)}, [])


LEAVES = st.one_of(st.integers(), st.booleans(), st.lists(st.integers(), max_size=2))
KEYS = st.sampled_from(["a", "ab", "x_y", "wm"])
TABLES = st.dictionaries(KEYS, LEAVES, min_size=1, max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(KEYS, st.one_of(LEAVES, TABLES, st.dictionaries(KEYS, TABLES, min_size=1)), max_size=4))
def test_flatten_and_back(tree: dict[str, Any]) -> None:
    assert unflatten(dict(flatten(tree))) == tree


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=4))
def test_any_override_is_a_recipe_or_a_clear_error(texts: list[str]) -> None:
    loaded = plugins.current()
    try:
        assert isinstance(resolve(overrides=texts, plugins=loaded), Recipe)
    except DynawebError as error:
        assert str(error)


PICTURES = ("observation.modality=both",)


def refused(recipe: Recipe) -> str:
    """Why a recipe's pictures cannot be had; '' where they can."""
    try:
        check_pictures(recipe, current())
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("env", "overrides", "why"),
    [
        ("sites", ("env.driver=static",), "the driver static of env 'sites' draws none; set its driver to chromium"),
        ("dream", ("env.task_settings.driver=static",), "the driver static of env.tasks 'sites' draws none"),
        (
            "dream",
            ("env.task_settings.driver=chromium", 'eval.env="sites"', 'eval.env_settings={driver="static"}'),
            "driver static of eval.env 'sites'",
        ),
        (
            "dream",
            ("env.task_settings.driver=chromium", "observation.modality=screenshot"),
            "leaves nothing to see in dreams: wm 'delta' writes pages as",
        ),
    ],
)
def test_pictures_are_refused_where_nothing_draws_pages(env: str, overrides: tuple[str, ...], why: str) -> None:
    recipe = resolve(env=env, reward="checker" if env == "sites" else None, overrides=(*PICTURES, *overrides))
    words = refused(recipe)
    assert why in words and "\n" not in words


@pytest.mark.parametrize("env", ["sites", "miniwob", "webarena", "webvoyager", "browsergym", "dream"])
def test_pictures_are_taken_by_whatever_has_a_browser(env: str) -> None:
    driver = {"sites": ("env.driver=chromium",), "dream": ("env.task_settings.driver=chromium",)}
    assert refused(resolve(env=env, overrides=(*PICTURES, *driver.get(env, ())))) == ""
    assert refused(resolve(env="sites", overrides=("env.driver=static",))) == ""


@given(
    width=st.integers(64, 8192),
    height=st.integers(64, 8192),
    scale=st.floats(0.05, 4),
    most=st.integers(4096, 10_000_000) | st.just(0),
)
@example(width=1280, height=720, scale=1.0, most=100_000)
@example(width=1280, height=720, scale=0.3294, most=100_000)
@example(width=6500, height=8000, scale=1.0, most=0)
@settings(max_examples=200, deadline=None)
def test_no_picture_has_more_pixels_than_the_most(width: int, height: int, scale: float, most: int) -> None:
    seen = ObservationSettings(modality="both", width=width, height=height, scale=scale, max_pixels=most)
    sides = [round(side * seen.picture_scale) for side in (width, height)]
    assert 0 < sides[0] * sides[1] <= (most or MAX_PIXELS) and seen.picture_scale <= scale


def test_the_scale_of_pictures_keeps_to_their_most_pixels() -> None:
    def scale(**settings: Any) -> float:
        return ObservationSettings(modality="both", **settings).picture_scale

    assert scale() == 1.0 and scale(scale=2.0) == 2.0
    assert scale(width=1000, height=1000, max_pixels=250_000) == 0.5
    assert scale(width=8192, height=8192, scale=4) ** 2 * 8192 * 8192 <= 50_000_001
    assert scale(scale=0.33) == 0.33 and scale(scale=0.33, max_pixels=1_000_000) == 0.33
    with pytest.raises(ConfigError, match="nothing can be read in a picture of 9 pixels"):
        resolve(overrides=("observation.max_pixels=9",))
    with pytest.raises(ConfigError, match=r"observation.modality = 'pixels'"):
        resolve(overrides=("observation.modality=pixels",))
