"""The forum: every template's plan succeeds, wrong endings fail, pages keep their size, forms do what they say."""

from __future__ import annotations

import pytest
from flask import g
from flask.testing import FlaskClient
from sites_player import play, play_expert, state, visit, wander

from dynaweb.types import Action
from dynaweb_env_sites.base import Template, current
from dynaweb_env_sites.content import locale_of, split_of
from dynaweb_env_sites.forum import SITE
from dynaweb_env_sites.forum_state import PAGE, ForumState, forum_content
from dynaweb_env_sites.server import create_app
from dynaweb_env_sites.tasks import make_task, sites_tasks

NAMES = [template.name for template in SITE.templates]
KINDS = {"navigate", "search", "read", "compare", "form", "state", "impossible"}
URL = "http://forum.localhost"
STOP = Action("stop")


def _client() -> tuple[FlaskClient, ForumState]:
    app = create_app()
    world = app.store.get("0")
    assert world is not None
    forum = world.state("forum")
    assert isinstance(forum, ForumState)
    return app.test_client(), forum


def _click(name: str, role: str = "link") -> Action:
    return Action("click", target_role=role, target_name=name)


def _type(name: str, text: str) -> Action:
    return Action("type", text=text, target_role="textbox", target_name=name)


def test_all_kinds_of_templates() -> None:
    assert {template.kind for template in SITE.templates} == KINDS
    assert len(NAMES) == len(set(NAMES)) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_expert_succeeds_and_doing_nothing_fails(name: str) -> None:
    for split in ("pretrain", "validation"):
        for task in sites_tasks(split, 5, 3, templates=[name]):
            verdict, pages = play_expert(task)
            assert verdict.score == 1.0, f"{task.id} {task.intent}: {verdict.why}"
            assert len(pages) == task.best_steps and len(pages) <= 7
            assert play(task, [STOP]).score == 0.0, task.id


@pytest.mark.parametrize("template", [item for item in SITE.templates if item.kind in ("read", "compare")])
def test_wrong_answers_fail(template: Template) -> None:
    for task in sites_tasks("test", 4, 0, templates=[template.name]):
        if "string_match" in task.evaluation["eval_types"]:
            for wrong in ("", "N/A", task.meta["plan"][-1]["text"] + "1", task.intent):
                assert play_expert(task, answer=wrong)[0].score == 0.0, (task.id, wrong)


def test_random_clicks_fail() -> None:
    tasks = [task for task in sites_tasks("train", 60, 5, templates=NAMES) if (task.best_steps or 0) > 2]
    assert sum(wander(task, number, 4).score or 0 for number, task in enumerate(tasks)) <= 2


def test_most_plans_fit_into_short_dreams() -> None:
    lengths = [task.best_steps or 0 for task in sites_tasks("train", 200, 0, templates=NAMES)]
    assert sum(2 <= length <= 5 for length in lengths) / len(lengths) > 0.85
    assert max(lengths) >= 6


def test_names_of_the_task_are_visible_when_they_are_needed() -> None:
    for task in sites_tasks("train", 80, 2, templates=NAMES):
        quoted = set(task.meta["slots"].values())
        _, pages = play_expert(task)
        for page, step in zip(pages, task.meta["plan"], strict=True):
            if step.get("role") == "link" and step["name"] in quoted:
                assert step["name"] in {node.name for node in page.nodes}, task.id


def test_same_seed_same_forum_and_other_seed_other_names() -> None:
    first, again, other = (SITE.build(seed, "train", locale_of(seed)) for seed in (10_001, 10_001, 10_002))
    assert first.content == again.content and first.threads is not again.threads
    forum_content.cache_clear()
    assert SITE.build(10_001, "train", locale_of(10_001)).content == first.content
    names = [{member.name for member in forum.content.members} for forum in (first, other)]
    assert not names[0] & names[1]
    assert make_task("forum/reply", "train", 10_001, 7) == make_task("forum/reply", "train", 10_001, 7)


def test_words_belong_to_their_split() -> None:
    content = SITE.build(20_003, "validation", locale_of(20_003)).content
    names = [item.name for item in content.boards] + [item.name for item in content.members]
    assert {split_of(name) for name in names} == {"validation"}
    task = make_task("forum/start-thread", "test", 30_003, 1)
    assert task is not None
    assert "test" in {split_of(word) for word in task.meta["slots"]["title"].split()}


def test_pages_have_a_moderate_size() -> None:
    for seed in (10_000, 10_001, 10_004):
        forum = state("forum", seed)
        boards = [f"/boards/{board.slug}" for board in forum.content.boards]
        members = [f"/users/{member.slug}" for member in forum.content.members]
        paths = ["/", "/new", "/members", "/settings", "/notifications", "/search?q=e", *boards, *members]
        for page in visit("forum", [*paths, *(f"/threads/{key}" for key in forum.threads)], seed):
            assert 9 <= len(page.nodes) <= 30, page.url
            assert all(len(node.name.split()) <= 8 for node in page.nodes), page.url


def test_controls_are_labelled_except_the_two_that_are_meant_to_be_bad() -> None:
    thread = next(iter(state("forum").threads))
    pages = visit("forum", ["/", "/new", "/members", "/settings", f"/threads/{thread}"])
    unnamed = [(page.url, node.role) for page in pages for node in page.nodes if not node.name]
    assert unnamed == [(f"{URL}/settings", "textbox")]
    assert all(any(node.name == "»" for node in page.nodes) for page in pages)


def test_sorting_and_pages() -> None:
    forum = state("forum")
    board = forum.content.boards[0]
    urls = [f"/boards/{board.slug}?sort={sort}" for sort in ("Newest", "Most+votes", "nonsense")]
    newest, best, odd, second, far, bad = visit(
        "forum", [*urls, *(f"{urls[0]}&page={page}" for page in ("2", "99", "x"))]
    )
    titles = {thread.title: thread.votes for thread in forum.threads.values()}
    shown = [
        [node.name for node in page.nodes if node.name in titles] for page in (newest, best, odd, second, far, bad)
    ]
    assert len(shown[0]) == PAGE and shown[0] == shown[2] == shown[5]
    assert shown[1] == sorted(shown[1], key=lambda title: -titles[title])
    assert max(titles[title] for title in shown[0] + shown[3]) == titles[shown[1][0]]
    assert shown[3] == shown[4] and not set(shown[3]) & set(shown[0])


def test_buttons_toggle() -> None:
    client, forum = _client()
    thread = next(iter(forum.threads.values()))
    for path, group in (("upvote", forum.upvoted), ("subscribe", forum.subscribed)):
        client.post(f"/threads/{thread.slug}/{path}", base_url=URL)
        assert group == {thread.title}
        client.post(f"/threads/{thread.slug}/{path}", base_url=URL)
        assert not group
    assert forum.threads[thread.slug] == thread
    assert client.post("/threads/nothing/upvote", base_url=URL).status_code == 404


def test_forms_refuse_what_is_missing_and_keep_what_was_typed() -> None:
    client, forum = _client()
    before = SITE.snapshot(forum)
    page = client.post("/new", base_url=URL, data={"title": " ", "board": "x", "text": "kept"}).text
    assert "Please give a title." in page and "kept" in page
    assert "Please give" in client.post("/settings", base_url=URL, data={"name": "", "email": "a@b.c"}).text
    thread = next(iter(forum.threads))
    assert "Please write" in client.post(f"/threads/{thread}/reply", base_url=URL, follow_redirects=True).text
    assert SITE.snapshot(forum) == before


def test_equal_titles_get_different_addresses() -> None:
    client, forum = _client()
    form = {"title": "Über alles", "board": forum.content.boards[0].name, "text": ""}
    places = [client.post("/new", base_url=URL, data=form).location for _ in range(2)]
    assert places == ["/threads/uber-alles", "/threads/uber-alles-2"]
    assert forum.started == ["Über alles"] * 2


def test_typed_text_is_escaped() -> None:
    client, forum = _client()
    thread = next(iter(forum.threads))
    answer = client.post(
        f"/threads/{thread}/reply", base_url=URL, data={"text": "<b>'bold'</b>"}, follow_redirects=True
    )
    assert "<b>" not in answer.text and "&lt;b&gt;" in answer.text


def test_another_way_to_the_same_state_counts_too() -> None:
    task = sites_tasks("train", 1, 4, templates=["forum/upvote"])[0]
    thread = task.meta["slots"]["thread"]
    way = [Action("goto", text=f"{URL}/search?q={thread}"), _click(thread), _click("Upvote", "button"), STOP]
    assert play(task, way).score == 1.0
    assert play(task, [*way[:-1], _click("Remove upvote", "button"), STOP]).score == 0.0


def test_replying_elsewhere_as_well_fails() -> None:
    task = sites_tasks("train", 1, 4, templates=["forum/reply"])[0]
    thread, text = task.meta["slots"]["thread"], task.meta["slots"]["text"]
    right = [_click(thread), _type("Reply", text), _click("Post reply", "button")]
    other = next(
        item.title for item in list(state("forum", task.meta["site_seed"]).threads.values())[:4] if item.title != thread
    )
    wrong = [_click("Home"), _click(other), _type("Reply", text), _click("Post reply", "button")]
    assert play(task, [*right, STOP]).score == 1.0
    assert play(task, [*right, *wrong, STOP]).score == 0.0


def test_a_view_wants_its_own_state() -> None:
    app = create_app()
    with app.app_context(), pytest.raises(TypeError, match="ForumState"):
        g.state = state("shop")
        current(ForumState)
