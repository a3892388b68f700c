"""The forum's task templates: what is asked, the scripted plan, and how success is checked."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dynaweb_env_sites.forum.state import OPENERS, PAGE, POSTS, REMARKS, ForumState, Member, Thread, title
from dynaweb_env_sites.goals import (
    Do,
    Goal,
    all_of,
    answer_is,
    change_contact,
    choose,
    click,
    fill,
    goal,
    not_there,
    page_has,
    press,
    state_is,
    stop,
    switch_setting,
    templates_of,
    url_is,
    via_search,
)

URL = "http://forum.localhost"


def _thread_url(thread: Thread) -> str:
    return f"{URL}/threads/{thread.slug}"


def _listed(state: ForumState, rng: random.Random) -> Thread:
    """A thread that stands on the first page of its board."""
    board = rng.choice(state.content.boards)
    return rng.choice(state.board_threads(board.name)[:PAGE])


def _latest(state: ForumState, rng: random.Random) -> Thread:
    """A thread that the home page lists."""
    return rng.choice(list(state.threads.values())[:4])


def _via_board(thread: Thread) -> tuple[Do, ...]:
    return click(thread.board), click(thread.title)


def _member(state: ForumState, rng: random.Random) -> Member:
    return rng.choice(state.content.members)


def _to_member(state: ForumState, member: Member) -> tuple[Do, ...]:
    """From the home page: click who is on it, search for anyone else."""
    return (click(member.name),) if member in state.content.active else via_search(member.name)


def open_board(state: ForumState, rng: random.Random) -> Goal:
    """Open a board from the home page."""
    board = rng.choice(state.content.boards)
    phrases = ("Open the board '{board}'.", "Go to the board '{board}'.", "Show the threads of the board '{board}'.")
    return goal(rng, phrases, (click(board.name), stop()), url_is(f"{URL}/boards/{board.slug}"), board=board.name)


def open_thread(state: ForumState, rng: random.Random) -> Goal:
    """Open a thread through its board, sometimes on the second page."""
    board = rng.choice(state.content.boards)
    threads = state.board_threads(board.name)
    thread = rng.choice(threads)
    turn = (click("Next"),) if threads.index(thread) >= PAGE else ()
    phrases = ("Open the thread '{thread}' on the board '{board}'.", "Go to the board '{board}' and open '{thread}'.")
    plan = (click(board.name), *turn, click(thread.title), stop())
    return goal(rng, phrases, plan, url_is(_thread_url(thread)), thread=thread.title, board=board.name)


def open_profile(state: ForumState, rng: random.Random) -> Goal | None:
    """Open the profile of someone who replied to a thread."""
    thread = _latest(state, rng)
    if not thread.replies:
        return None
    reply = rng.choice(thread.replies[:POSTS])
    member = next(member for member in state.content.members if member.name == reply.author)
    phrases = (
        "Open the profile of '{member}', who replied to '{thread}'.",
        "Open the thread '{thread}' and go to the profile of '{member}'.",
    )
    plan = (click(thread.title), click(member.name), stop())
    return goal(rng, phrases, plan, url_is(f"{URL}/users/{member.slug}"), member=member.name, thread=thread.title)


def open_mention(state: ForumState, rng: random.Random) -> Goal:
    """Open the thread that a notification is about."""
    note = rng.choice(state.content.notifications)
    event = f"{note.author} {note.reason}"
    phrases = (
        "Go to the notifications and open the thread that '{event}'.",
        "In the notifications, open the thread that '{event}'.",
    )
    plan = (click("Notifications"), click(note.thread.title, within=event), stop())
    return goal(rng, phrases, plan, url_is(_thread_url(note.thread)), event=event)


def search_thread(state: ForumState, rng: random.Random) -> Goal:
    """Search for a thread and open it."""
    thread = rng.choice(list(state.threads.values()))
    phrases = ("Search for '{thread}' and open it.", "Find the thread '{thread}' with the search and open it.")
    return goal(rng, phrases, (*via_search(thread.title), stop()), url_is(_thread_url(thread)), thread=thread.title)


def search_member(state: ForumState, rng: random.Random) -> Goal:
    """Search for a member and open the profile."""
    member = _member(state, rng)
    phrases = ("Search for the member '{member}' and open the profile.", "Find '{member}' with the search and open it.")
    plan = (*via_search(member.name), stop())
    return goal(rng, phrases, plan, url_is(f"{URL}/users/{member.slug}"), member=member.name)


def _read_thread(state: ForumState, rng: random.Random, facts: Sequence[tuple[str, str]]) -> Goal:
    question, attribute = rng.choice(facts)
    by_board = rng.random() < 0.5
    thread = _listed(state, rng) if by_board else _latest(state, rng)
    answer = str(getattr(thread, attribute))
    if by_board:
        question, plan = f"Open the board '{{board}}'. {question}", (*_via_board(thread), stop(answer))
    else:
        plan = (click(thread.title), stop(answer))
    return goal(rng, [question], plan, answer_is(answer), board=thread.board, thread=thread.title)


def read_author(state: ForumState, rng: random.Random) -> Goal:
    """Answer who started a thread, and when."""
    facts = (
        ("Who is the author of '{thread}'?", "author"),
        ("Who started the thread '{thread}'?", "author"),
        ("When was '{thread}' posted?", "posted"),
    )
    return _read_thread(state, rng, facts)


def read_votes(state: ForumState, rng: random.Random) -> Goal:
    """Answer how many votes a thread has."""
    facts = (("How many votes has '{thread}'?", "votes"), ("Tell me the votes of the thread '{thread}'.", "votes"))
    return _read_thread(state, rng, facts)


def read_profile(state: ForumState, rng: random.Random) -> Goal:
    """Answer with a fact from a profile."""
    member = _member(state, rng)
    fact = rng.choice(("joined", "karma", "location", "bio"))
    answer = str(getattr(member, fact))
    phrases = (
        "What is the {fact} of the member '{member}'?",
        "Look up the {fact} of '{member}'.",
        "Tell me the {fact} in the profile of '{member}'.",
    )
    plan = (*_to_member(state, member), stop(answer))
    check = answer_is(answer)
    return goal(rng, phrases, plan, check, fact={"joined": "joined date"}.get(fact, fact), member=member.name)


def compare_threads(state: ForumState, rng: random.Random) -> Goal | None:
    """Name the thread of a board with most votes or replies."""
    board, what = rng.choice(state.content.boards), rng.choice(("votes", "replies"))
    best, second = state.board_threads(board.name, f"Most {what}")[:2]
    if what == "replies" and len(best.replies) == len(second.replies):
        return None
    phrases = (
        "Which thread on the board '{board}' has the most {what}?",
        "Name the thread with the most {what} on the board '{board}'.",
    )
    plan = (click(board.name), choose("Sort", f"Most {what}"), press("Apply"), stop(best.title))
    return goal(rng, phrases, plan, answer_is(best.title), board=board.name, what=what)


def open_best(state: ForumState, rng: random.Random) -> Goal | None:
    """Open the thread of a board with most votes or replies."""
    compared = compare_threads(state, rng)
    if compared is None:
        return None
    best = compared.plan[-1].text
    thread = next(thread for thread in state.threads.values() if thread.title == best)
    phrases = (
        "Open the thread with the most {what} on the board '{board}'.",
        "On '{board}', open what has the most {what}.",
    )
    plan = (*compared.plan[:-1], click(best), stop())
    return goal(rng, phrases, plan, url_is(_thread_url(thread)), **compared.meta["slots"])


def start_thread(state: ForumState, rng: random.Random) -> Goal:
    """Start a thread with title and board."""
    name, board = title(state.new_words(rng)), rng.choice(state.content.boards).name
    phrases = ("Start a thread titled '{title}' on the board '{board}'.", "Post a new thread '{title}' on '{board}'.")
    plan = (click("New thread"), fill("Title", name), choose("Board", board), press("Post thread"), stop())
    checks = state_is(("started", [name]), (f"threads.{name}.board", board))
    return goal(rng, phrases, plan, all_of(checks, page_has("last", name)), title=name, board=board)


def start_with_text(state: ForumState, rng: random.Random) -> Goal:
    """Start a thread with title, board and text."""
    words = state.new_words(rng)
    name, text, board = title(words), words.phrase(OPENERS), rng.choice(state.content.boards).name
    phrases = (
        "Start a thread titled '{title}' on the board '{board}' with the text '{text}'.",
        "Post '{text}' as a new thread '{title}' on the board '{board}'.",
    )
    form = (fill("Title", name), choose("Board", board), fill("Text", text))
    checks = state_is(("started", [name]), (f"threads.{name}", {"board": board, "text": text}))
    plan = (click("New thread"), *form, press("Post thread"), stop())
    return goal(rng, phrases, plan, checks, title=name, board=board, text=text)


def change_settings(state: ForumState, rng: random.Random) -> Goal:
    """Change the display name or the e-mail address."""
    return change_contact(state, rng, "display name", signature="")


def toggle_digests(state: ForumState, rng: random.Random) -> Goal:
    """Turn the e-mail digests on or off."""
    return switch_setting(state, rng, "digests", "E-mail digests")


def upvote(state: ForumState, rng: random.Random) -> Goal:
    """Upvote a thread of a board."""
    thread = _listed(state, rng)
    phrases = ("Upvote the thread '{thread}' on the board '{board}'.", "On the board '{board}', upvote '{thread}'.")
    checks = all_of(state_is(("upvoted", [thread.title])), page_has(_thread_url(thread), f"Votes: {thread.votes + 1}"))
    plan = (*_via_board(thread), press("Upvote"), stop())
    return goal(rng, phrases, plan, checks, thread=thread.title, board=thread.board)


def subscribe(state: ForumState, rng: random.Random) -> Goal:
    """Find a thread with the search and subscribe to it."""
    thread = rng.choice(list(state.threads.values()))
    phrases = ("Search for '{thread}' and subscribe to it.", "Find the thread '{thread}' and subscribe to it.")
    plan = (*via_search(thread.title), press("Subscribe"), stop())
    return goal(rng, phrases, plan, state_is(("subscribed", [thread.title])), thread=thread.title)


def reply(state: ForumState, rng: random.Random) -> Goal:
    """Reply to one of the latest threads."""
    thread, text = _latest(state, rng), state.new_words(rng).phrase(REMARKS)
    phrases = ("Reply '{text}' to the thread '{thread}'.", "Open '{thread}' and post the reply '{text}'.")
    plan = (click(thread.title), fill("Reply", text), press("Post reply"), stop())
    checks = all_of(state_is(("replies", {thread.title: [text]})), page_has(_thread_url(thread), text))
    return goal(rng, phrases, plan, checks, thread=thread.title, text=text)


def follow(state: ForumState, rng: random.Random) -> Goal:
    """Follow a member."""
    member = _member(state, rng)
    phrases = ("Follow the member '{member}'.", "Open the profile of '{member}' and follow them.")
    plan = (*_to_member(state, member), press("Follow"), stop())
    return goal(rng, phrases, plan, state_is(("followed", [member.name])), member=member.name)


def take_part(state: ForumState, rng: random.Random) -> Goal:
    """Long: reply to a thread of a board, upvote it and subscribe to it."""
    thread, text = _listed(state, rng), state.new_words(rng).phrase(REMARKS)
    phrases = (
        "On the board '{board}', upvote '{thread}', subscribe to it and reply '{text}'.",
        "Upvote the thread '{thread}' on the board '{board}', subscribe to it, then reply '{text}'.",
    )
    buttons = (press("Upvote"), press("Subscribe"), fill("Reply", text), press("Post reply"))
    wanted = [thread.title]
    checks = state_is(("upvoted", wanted), ("subscribed", wanted), ("replies", {thread.title: [text]}))
    plan = (*_via_board(thread), *buttons, stop())
    return goal(rng, phrases, plan, checks, board=thread.board, thread=thread.title, text=text)


def missing(state: ForumState, rng: random.Random) -> Goal | None:
    """Impossible: a thread or a member that does not exist."""
    words = state.new_words(rng)
    thread, member = title(words), words.name()
    name, phrases = rng.choice(
        (
            (thread, ("Open the thread '{name}'.", "Upvote the thread '{name}'.", "Search for '{name}' and open it.")),
            (member, ("Follow the member '{name}'.", "What is the karma of the member '{name}'?")),
        )
    )
    return None if any(state.find(name)) else not_there(rng, phrases, name=name)


TEMPLATES = templates_of(
    "forum",
    {
        "navigate": (open_board, open_thread, open_profile, open_mention),
        "search": (search_thread, search_member),
        "read": (read_author, read_votes, read_profile),
        "compare": (compare_threads, open_best),
        "form": (start_thread, start_with_text, change_settings, toggle_digests),
        "state": (upvote, subscribe, reply, follow, take_part),
        "impossible": (missing,),
    },
)
