"""The forum: boards, threads with votes and replies, members, notifications and settings, without JavaScript."""

from __future__ import annotations

from dataclasses import replace

from flask import Blueprint, abort, request
from werkzeug.wrappers import Response

from dynaweb_env_sites.base import (
    LACKING,
    Site,
    View,
    at_address,
    current,
    listing,
    option,
    posted_contact,
    render,
    sent,
    show,
)
from dynaweb_env_sites.forum.state import (
    MEMBER_SORTS,
    PAGE,
    POSTS,
    SORTS,
    Board,
    ForumState,
    Member,
    Thread,
)
from dynaweb_env_sites.forum.tasks import TEMPLATES

pages = Blueprint("forum", __name__)
SITE = Site("forum", pages, TEMPLATES, ForumState.fresh)


@pages.get("/")
def _home() -> str:
    state = current(ForumState)
    return render("forum/home.html", latest=list(state.threads.values())[:4])


@pages.get("/boards/<name>")
def _board(name: str) -> str:
    state = current(ForumState)
    board, sort = _board_at(state, name), option("sort", SORTS)
    threads = listing(state.board_threads(board.name, sort), PAGE)
    return render("forum/board.html", board=board, threads=threads, sort=sort, sorts=SORTS)


@pages.get("/threads/<name>")
def _thread(name: str) -> str:
    state = current(ForumState)
    thread = _thread_at(state, name)
    board = next(board for board in state.content.boards if board.name == thread.board)
    people = {member.name: member for member in state.content.members}
    return render("forum/thread.html", thread=thread, board=board, people=people, posts=listing(thread.replies, POSTS))


@pages.post("/threads/<name>/upvote")
def _upvote(name: str) -> Response:
    state = current(ForumState)
    thread = _thread_at(state, name)
    return show(state, f"/threads/{name}", "Upvoted." if state.toggle_upvote(thread) else "Upvote removed.")


@pages.post("/threads/<name>/subscribe")
def _subscribe(name: str) -> Response:
    state = current(ForumState)
    thread = _thread_at(state, name)
    return show(state, f"/threads/{name}", "Subscribed." if state.toggle_subscription(thread) else "Unsubscribed.")


@pages.post("/threads/<name>/reply")
def _reply(name: str) -> Response:
    state = current(ForumState)
    thread, text = _thread_at(state, name), sent("text")
    if not text:
        return show(state, f"/threads/{name}", "Please write a reply.")
    state.reply(thread, text)
    return show(state, f"/threads/{name}", "Reply posted.")


@pages.get("/new")
def _new() -> str:
    return _new_form(current(ForumState))


@pages.post("/new")
def _create() -> View:
    state = current(ForumState)
    title, board, text = sent("title"), sent("board"), sent("text")
    if not title or board not in {board.name for board in state.content.boards}:
        state.notice = "Please give a title."
        return _new_form(state, title=title, board=board, text=text)
    return show(state, f"/threads/{state.start(board, title, text).slug}", "Thread started.")


def _new_form(state: ForumState, **values: str) -> str:
    return render("forum/new.html", boards=[board.name for board in state.content.boards], values=values)


@pages.get("/search")
def _search() -> str:
    state = current(ForumState)
    query = request.args.get("q", "").strip()
    threads, members = state.find(query)
    return render("forum/search.html", query=query, threads=threads[:PAGE], members=members[:PAGE])


@pages.get("/members")
def _members() -> str:
    state = current(ForumState)
    sort = option("sort", MEMBER_SORTS)
    return render("forum/members.html", members=listing(state.members(sort), PAGE), sort=sort, sorts=MEMBER_SORTS)


@pages.get("/users/<name>")
def _user(name: str) -> str:
    state = current(ForumState)
    member = _member_at(state, name)
    threads = [thread for thread in state.threads.values() if thread.author == member.name]
    return render("forum/user.html", member=member, threads=threads[:3])


@pages.post("/users/<name>/follow")
def _follow(name: str) -> Response:
    state = current(ForumState)
    followed = state.toggle_follow(_member_at(state, name))
    return show(state, f"/users/{name}", "Following." if followed else "No longer following.")


@pages.get("/settings")
def _settings() -> str:
    return render("forum/settings.html")


@pages.post("/settings")
def _save_settings() -> View:
    state = current(ForumState)
    contact = posted_contact()
    if contact is None:
        state.notice = LACKING
        return render("forum/settings.html")
    state.settings = replace(state.settings, **contact, signature=sent("signature"), digests=sent("digests") == "yes")
    return show(state, "/settings", "Settings saved.")


@pages.get("/notifications")
def _notifications() -> str:
    return render("forum/notifications.html")


@pages.post("/notifications")
def _read_notifications() -> Response:
    state = current(ForumState)
    state.unread = False
    return show(state, "/notifications", "All marked as read.")


def _board_at(state: ForumState, address: str) -> Board:
    return at_address(state.content.boards, address)


def _thread_at(state: ForumState, address: str) -> Thread:
    return state.threads.get(address) or abort(404)


def _member_at(state: ForumState, address: str) -> Member:
    return at_address(state.content.members, address)
