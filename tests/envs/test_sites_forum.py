"""The forum's own pages: orders, buttons, forms, and other ways to the same state."""

from __future__ import annotations

import pytest
from flask import g
from sites_player import STOP, click, client, fill, play, state, visit

from dynaweb.types import Action
from dynaweb_env_sites.base import current
from dynaweb_env_sites.forum.state import PAGE, ForumState
from dynaweb_env_sites.server import create_app
from dynaweb_env_sites.tasks import sites_tasks

URL = "http://forum.localhost"


def test_sorting_and_pages() -> None:
    forum = state("forum")
    board = forum.content.boards[0]
    urls = [f"/boards/{board.slug}?sort={sort}" for sort in ("Newest", "Most+votes", "nonsense")]
    newest, best, odd, second, far, bad = visit(
        "forum", [*urls, *(f"{urls[0]}&page={page}" for page in ("2", "99", "x"))]
    )
    votes = {thread.title: thread.votes for thread in forum.threads.values()}
    titles = [
        [node.name for node in page.nodes if node.name in votes] for page in (newest, best, odd, second, far, bad)
    ]
    assert len(titles[0]) == PAGE and titles[0] == titles[2] == titles[5]
    assert titles[1] == sorted(titles[1], key=lambda title: -votes[title])
    assert max(votes[title] for title in titles[0] + titles[3]) == votes[titles[1][0]]
    assert titles[3] == titles[4] and not set(titles[3]) & set(titles[0])


def test_buttons_toggle() -> None:
    http, forum = client("forum")
    thread = next(iter(forum.threads.values()))
    for path, group in (("upvote", forum.upvoted), ("subscribe", forum.subscribed)):
        http.post(f"/threads/{thread.slug}/{path}", base_url=URL)
        assert group == {thread.title}
        http.post(f"/threads/{thread.slug}/{path}", base_url=URL)
        assert not group
    assert forum.threads[thread.slug] == thread
    assert http.post("/threads/nothing/upvote", base_url=URL).status_code == 404


def test_forms_refuse_what_is_missing_and_keep_what_was_typed() -> None:
    http, forum = client("forum")
    before = forum.snapshot()
    page = http.post("/new", base_url=URL, data={"title": " ", "board": "x", "text": "kept"}).text
    assert "Please give a title." in page and "kept" in page
    assert "Please give" in http.post("/settings", base_url=URL, data={"name": "", "email": "a@b.c"}).text
    thread = next(iter(forum.threads))
    assert "Please write" in http.post(f"/threads/{thread}/reply", base_url=URL, follow_redirects=True).text
    assert forum.snapshot() == before


def test_equal_titles_get_different_addresses() -> None:
    http, forum = client("forum")
    form = {"title": "Über alles", "board": forum.content.boards[0].name, "text": ""}
    addresses = [http.post("/new", base_url=URL, data=form).location for _ in range(2)]
    assert addresses == ["/threads/uber-alles", "/threads/uber-alles-2"]
    assert forum.started == ["Über alles"] * 2


def test_another_way_to_the_same_state_counts_too() -> None:
    task = sites_tasks("train", 1, 4, templates=["forum/upvote"])[0]
    thread = task.meta["slots"]["thread"]
    way = [Action("goto", text=f"{URL}/search?q={thread}"), click(thread), click("Upvote", "button"), STOP]
    assert play(task, way).score == 1.0
    assert play(task, [*way[:-1], click("Remove upvote", "button"), STOP]).score == 0.0


def test_replying_elsewhere_as_well_fails() -> None:
    task = sites_tasks("train", 1, 4, templates=["forum/reply"])[0]
    thread, text = task.meta["slots"]["thread"], task.meta["slots"]["text"]
    right = [click(thread), fill("Reply", text), click("Post reply", "button")]
    other = next(
        item.title for item in list(state("forum", task.meta["site_seed"]).threads.values())[:4] if item.title != thread
    )
    wrong = [click("Home"), click(other), fill("Reply", text), click("Post reply", "button")]
    assert play(task, [*right, STOP]).score == 1.0
    assert play(task, [*right, *wrong, STOP]).score == 0.0


def test_a_view_wants_its_own_state() -> None:
    app = create_app()
    with app.app_context(), pytest.raises(TypeError, match="ForumState"):
        g.state = state("shop")
        current(ForumState)
