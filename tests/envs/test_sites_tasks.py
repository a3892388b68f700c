"""Tasks: templates in rotation, the same for the same seed, and WebArena's format."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from dynaweb.errors import ConfigError, DynawebError, MissingError
from dynaweb.protocols import EnvironmentContext
from dynaweb.types import Action, Node, Observation, Task
from dynaweb_env_sites import SitesConfig
from dynaweb_env_sites.env import SitesSource
from dynaweb_env_sites.expert import SitesExpert
from dynaweb_env_sites.tasks import (
    make_task,
    plan_of,
    registry,
    site_seeds,
    sites_tasks,
    task_of,
    templates,
    to_webarena,
)

KINDS = {"navigate", "search", "read", "compare", "form", "state", "impossible"}


def test_there_are_enough_templates_of_every_kind() -> None:
    assert len(registry()) >= 24
    assert {template.kind for template in registry().values()} == KINDS
    assert {template.site for template in registry().values()} == {"shop", "forum", "tracker"}


def test_sites_and_length_choose_the_templates() -> None:
    assert templates(("shop", "forum", "tracker")) == registry()
    mail, long = templates(("mail",)), templates(long=True)
    assert {one.kind for one in mail.values()} == KINDS and not {*mail, *long} & {*registry()}
    assert {one.site for one in long.values()} == {"shop", "forum", "tracker", "mail"}
    assert {one.kind for one in long.values()} == {"long"} and {*templates(("mail",), long=True)} == {"mail/clear-desk"}
    # What the usual tasks are does not depend on the others.
    source = SitesSource(SitesConfig(driver="static"), EnvironmentContext())
    assert source.tasks("test", count=90, seed=5) == sites_tasks("test", 90, 5)
    held_out = SitesSource(SitesConfig(driver="static", sites=("mail",)), EnvironmentContext())
    assert {task.sites for task in held_out.tasks("test", count=40, seed=5)} == {("mail",)}
    tasks = SitesSource(SitesConfig(driver="static", length="long"), EnvironmentContext()).tasks(
        "test", count=30, seed=5
    )
    assert all(8 <= (task.best_steps or 0) <= 15 and task.sites != ("mail",) for task in tasks)
    assert all(task_of(task.id) == task for task in tasks)
    with pytest.raises(ConfigError, match="at most 5 best-case steps"):
        sites_tasks("test", 3, 0, 5, templates=tuple(long))


def test_every_template_makes_a_task_with_a_plan_that_stops() -> None:
    for name in registry():
        task = sites_tasks("train", 1, 3, templates=[name])[0]
        plan = plan_of(task)
        assert task.best_steps == len(plan) >= 2, name
        assert plan[-1].kind == "stop"
        assert task.evaluation["eval_types"]
        assert task.intent[0].isupper() and task.intent[-1] in ".?"
        assert len(task.intent.split()) <= 24, task.intent


def test_same_arguments_same_tasks() -> None:
    first, again = (sites_tasks("test", 80, 5) for _ in range(2))
    assert first == again
    assert first != sites_tasks("test", 80, 6)
    assert len({task.id for task in first}) == 80
    assert first[:30] == sites_tasks("test", 30, 5)


def test_templates_take_turns_and_do_not_depend_on_each_other() -> None:
    count = len(registry())
    tasks = sites_tasks("validation", 3 * count, 1)
    assert set(Counter(task.template for task in tasks).values()) == {3}
    name = "shop/add-to-cart"
    assert [task for task in tasks if task.template == name] == sites_tasks("validation", 3, 1, templates=[name])


def test_thousands_of_different_instances() -> None:
    tasks = sites_tasks("pretrain", 2000, 0, site_seeds=range(200))
    assert len({(task.meta["site_seed"], task.intent) for task in tasks}) >= 1990


def test_words_repeat_only_when_used_up() -> None:
    tasks = sites_tasks("train", 30, 0, templates=["shop/open-category"], site_seeds=[10_000])
    assert len({task.intent for task in tasks[:9]}) == 9
    assert len({task.id for task in tasks}) == 30


def test_an_id_says_all_of_a_task() -> None:
    for task in sites_tasks("test", 40, 2):
        template, split, site_seed, number = task.id.split(":")
        assert make_task(template, split, int(site_seed), int(number)) == task  # type: ignore[arg-type]
        assert int(site_seed) in site_seeds("test")
        assert task.meta["split"] == task.split == "test"


def test_a_task_is_found_by_its_id_and_nothing_else_is() -> None:
    for split in ("pretrain", "train", "validation", "test"):
        tasks = sites_tasks(split, 12, 4)
        assert [task_of(task.id) for task in tasks] == tasks
    name = "shop/add-to-cart"
    for text in (
        *("", ":", "::::", "7", name, f"{name}:train", f"{name}:train:10000", "shop/nothing:train:10000:1"),
        *(f"{name}:nowhere:10000:1", f"{name}:train:x:1", f"{name}:train:10000:-1", f"{name}:train:10000:²"),
        # A site of another split.
        *(f"{name}:train:30000:1", f"{name}:test:10000:1"),
    ):
        assert task_of(text) is None, text


def test_limit_of_best_steps() -> None:
    tasks = sites_tasks("train", 120, 0, max_best_steps=5)
    assert max(task.best_steps or 99 for task in tasks) <= 5
    assert max(task.best_steps or 0 for task in sites_tasks("train", 120, 0)) >= 6
    with pytest.raises(ConfigError, match="best-case steps"):
        sites_tasks("train", 1, 0, max_best_steps=1)


def test_unknown_names_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match="shop/add-to-cart"):
        sites_tasks("train", 1, 0, templates=["shop/nothing"])
    with pytest.raises(ConfigError, match="validation"):
        sites_tasks("holdout", 1, 0)


def test_webarena_format() -> None:
    for task in sites_tasks("test", 2 * len(registry()), 4):
        data = json.loads(json.dumps(to_webarena(task)))
        assert data["start_url"].startswith(f"__{task.sites[0].upper()}__")
        assert "localhost" not in json.dumps(data["eval"])
        assert isinstance(data["task_id"], int)
        for slot, value in data["instantiation_dict"].items():
            assert "{{" + slot + "}}" in data["intent_template"]
            assert value in data["intent"]


def test_expert_finds_elements_by_words_and_place() -> None:
    nodes = (Node(1, "text", "Hat"), Node(2, "button", "Buy"), Node(3, "text", "Coat"), Node(4, "button", "Buy"))
    plan = [{"kind": "click", "role": "button", "name": "Buy", "within": "Coat"}, {"kind": "stop", "text": "done"}]
    expert = SitesExpert(Task("t", "", "", meta={"plan": plan}))
    page = Observation("http://shop.localhost/", nodes)
    assert expert.act(page) == Action("click", 4, target_role="button", target_name="Buy")
    assert expert.act(page) == Action("stop", text="done")
    with pytest.raises(DynawebError, match="over after 2"):
        expert.act(page)


def test_expert_says_what_it_missed() -> None:
    task = Task("t", "", "", meta={"plan": [{"kind": "click", "role": "link", "name": "Cart"}]})
    page = Observation("http://shop.localhost/", (Node(1, "link", "Home"), Node(2, "button", "Cart")))
    with pytest.raises(DynawebError, match=r"link 'Cart'.*http://shop.localhost/ .*'Home'"):
        SitesExpert(task).act(page)
    with pytest.raises(MissingError, match="no plan"):
        SitesExpert(Task("u", "", ""))
