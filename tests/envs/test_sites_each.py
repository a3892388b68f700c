"""What every embedded site keeps: plans succeed, wrong endings fail, pages have their size and words their split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sites_player import STOP, client, play, play_expert, state, visit, wander

from dynaweb_env_sites.content import locale_of, slug, split_of
from dynaweb_env_sites.forum import state as forum_state
from dynaweb_env_sites.goals import Template
from dynaweb_env_sites.mail import state as mail_state
from dynaweb_env_sites.shop import state as shop_state
from dynaweb_env_sites.tasks import make_task, sites, sites_tasks, templates
from dynaweb_env_sites.tracker import state as tracker_state

KINDS = {"navigate", "search", "read", "compare", "form", "state", "impossible"}
TEMPLATES = tuple(templates().values())
each_site = pytest.mark.parametrize("name", tuple(sites()))


def _names(content: Any) -> list[str]:
    """Generated names of a site, one pseudo-word each."""
    if isinstance(content, shop_state.ShopContent):
        return [*content.categories, content.city, content.courier, *content.towns]
    if isinstance(content, forum_state.ForumContent):
        return [item.name for item in (*content.boards, *content.members)]
    if isinstance(content, mail_state.MailContent):
        return [content.brand, *content.folders, *(person.city for person in content.people)]
    return [item.name for item in (*content.projects, *content.people)]


def _templates(site: str) -> list[str]:
    return [template.name for template in sites()[site].templates]


def _paths(site: str, seed: int) -> Iterator[str]:
    """Every kind of page of a site."""
    content, here = state(site, seed).content, state(site, seed)
    if site == "shop":
        yield from ("/", "/cart", "/account", "/profile", "/orders", "/wishes", "/help", "/checkout", "/search?q=e")
        yield from (f"/category/{key}" for key in range(len(content.categories)))
        yield from (f"/product/{product.id}" for product in content.products)
        yield from (f"/order/{order.number}" for order in here.orders)
    elif site == "forum":
        yield from ("/", "/new", "/members", "/settings", "/notifications", "/search?q=e")
        yield from (f"/boards/{board.slug}" for board in content.boards)
        yield from (f"/users/{member.slug}" for member in content.members)
        yield from (f"/threads/{key}" for key in here.threads)
    elif site == "mail":
        yield from ("/", "/write", "/sent", "/contacts", "/contacts?sort=Last+met", "/new-contact", "/settings")
        yield from ("/search?q=e", *(f"/folders/{slug(folder)}" for folder in here.folders))
        yield from (f"/contacts/{key}" for key in here.people)
        yield from (f"/messages/{key}" for key in here.messages)
    else:
        yield from ("/", "/mine", "/settings", "/search?q=e")
        yield from (
            f"/projects/{p.slug}{tab}" for p in content.projects for tab in ("", "/milestones", "/members", "/new")
        )
        yield from (f"/people/{person.slug}" for person in content.people)
        yield from (f"/issues/{key}{tab}" for key in here.issues for tab in ("", "/edit"))


@each_site
def test_all_kinds_of_templates(name: str) -> None:
    assert {template.kind for template in sites()[name].templates} == KINDS
    assert len(_templates(name)) == len(set(_templates(name))) >= 8


@pytest.mark.parametrize("name", [*templates(), *templates(long=True)])
def test_expert_succeeds_and_doing_nothing_fails(name: str) -> None:
    low, high = (8, 15) if name in templates(long=True) else (2, 10)
    for split in ("pretrain", "validation"):
        for task in sites_tasks(split, 5, 3, templates=[name]):
            verdict, pages = play_expert(task)
            assert verdict.score == 1.0, f"{task.id} {task.intent}: {verdict.why}"
            assert len(pages) == task.best_steps and low <= len(pages) <= high
            assert play(task, [STOP]).score == 0.0, task.id


@pytest.mark.parametrize("template", [item for item in TEMPLATES if item.kind in ("read", "compare")])
def test_wrong_answers_fail(template: Template) -> None:
    for task in sites_tasks("test", 4, 0, templates=[template.name]):
        if "string_match" in task.evaluation["eval_types"]:
            for wrong in ("", "N/A", task.meta["plan"][-1]["text"] + "1", task.intent):
                assert play_expert(task, answer=wrong)[0].score == 0.0, (task.id, wrong)


@each_site
def test_random_clicks_fail(name: str) -> None:
    tasks = [task for task in sites_tasks("train", 60, 5, templates=_templates(name)) if (task.best_steps or 0) > 2]
    assert sum(wander(task, number, 4).score or 0 for number, task in enumerate(tasks)) <= 2


@each_site
def test_most_plans_fit_into_short_dreams(name: str) -> None:
    lengths = [task.best_steps or 0 for task in sites_tasks("train", 200, 0, templates=_templates(name))]
    assert sum(2 <= length <= 5 for length in lengths) / len(lengths) >= 0.85
    assert max(lengths) >= 6


@each_site
def test_names_of_the_task_are_visible_when_they_are_needed(name: str) -> None:
    for task in sites_tasks("train", 80, 2, templates=_templates(name)):
        quoted = set(task.meta["slots"].values())
        _, pages = play_expert(task)
        for page, step in zip(pages, task.meta["plan"], strict=True):
            if step.get("role") == "link" and step["name"] in quoted:
                assert step["name"] in {node.name for node in page.nodes}, task.id


@pytest.mark.parametrize(
    ("name", "cached", "template"),
    [
        ("shop", shop_state.shop_content, "shop/add-many"),
        ("forum", forum_state.forum_content, "forum/reply"),
        ("tracker", tracker_state.tracker_content, "tracker/comment-issue"),
        ("mail", mail_state.mail_content, "mail/reply"),
    ],
)
def test_same_seed_same_site_and_other_seed_other_names(name: str, cached: Any, template: str) -> None:
    fresh = partial(sites()[name].build, split="train")
    first, again, other = (fresh(seed, locale=locale_of(seed)) for seed in (10_001, 10_001, 10_002))
    assert first.content is again.content and first.snapshot() == again.snapshot()
    cached.cache_clear()
    assert fresh(10_001, locale=locale_of(10_001)).content == first.content
    assert not set(_names(first.content)) & set(_names(other.content))
    tasks = [make_task(template, "train", 10_001, number) for number in (7, 7, 8)]
    assert tasks[0] == tasks[1] != tasks[2]


@each_site
def test_words_belong_to_their_split(name: str) -> None:
    content = sites()[name].build(20_003, "validation", locale_of(20_003)).content
    assert {split_of(word) for word in _names(content)} == {"validation"}


@pytest.mark.parametrize(
    ("template", "number", "slot"),
    [
        ("shop/apply-coupon", 0, "code"),
        ("forum/start-thread", 1, "title"),
        ("tracker/missing", 0, "name"),
        ("mail/write-message", 0, "subject"),
    ],
)
def test_words_that_a_task_writes_belong_to_its_split(template: str, number: int, slot: str) -> None:
    task = make_task(template, "test", 30_003, number)
    assert task is not None
    assert "test" in {split_of(word.rstrip("0123456789")) for word in task.meta["slots"][slot].split()}


@each_site
def test_pages_have_a_moderate_size(name: str) -> None:
    for seed in (10_000, 10_001, 10_004):
        for page in visit(name, list(_paths(name, seed)), seed):
            assert 8 <= len(page.nodes) <= 30, page.url
            assert all(len(node.name.split()) <= 8 for node in page.nodes), page.url


@pytest.mark.parametrize(
    ("name", "page"), [("shop", "/cart"), ("forum", "/settings"), ("tracker", "/settings"), ("mail", "/settings")]
)
def test_controls_are_labelled_except_the_two_that_are_meant_to_be_bad(name: str, page: str) -> None:
    pages = visit(name, list(_paths(name, 10_000)))
    unnamed = [(page.url, node.role) for page in pages for node in page.nodes if not node.name]
    assert unnamed == [(f"http://{name}.localhost{page}", "textbox")]
    assert all(any(node.name == "»" for node in page.nodes) for page in pages)


@pytest.mark.parametrize(("name", "what"), [("forum", "threads"), ("tracker", "issues"), ("mail", "messages")])
def test_typed_text_is_escaped(name: str, what: str) -> None:
    http, site = client(name)
    address = f"/{what}/{next(iter(getattr(site, what)))}/{'comment' if name == 'tracker' else 'reply'}"
    form = {"text": "<b>'bold'</b>"}
    text = http.post(address, base_url=f"http://{name}.localhost", data=form, follow_redirects=True).text
    assert "<b>" not in text and "&lt;b&gt;" in text


@pytest.mark.parametrize("name", [template.name for template in templates(long=True).values()])
def test_a_long_task_that_ends_a_step_early_fails(name: str) -> None:
    (task,) = sites_tasks("test", 1, 1, templates=[name])
    left_out = {**task.meta, "plan": [*task.meta["plan"][:-2], task.meta["plan"][-1]]}
    assert play_expert(replace(task, meta=left_out))[0].score == 0.0
