"""Tasks in WebArena's format, made of templates and the tracker's content: `tasks/train.json` and its neighbours.

The issues are in two halves: training and validation tasks are about one, test tasks about the other, and four
templates are only in the test. So a test task is never about a page that a demonstration showed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from content import PRIORITIES, RESOLVED, SEED, STATUSES, Content, Issue, content

from dynaweb.runs.atomic import write_text

COUNTS = {"train": 7, "validation": 2, "test": 7}
"""Tasks of each template; the four templates of the test have one task less."""
HOME = "__TRACKER__/"

_TITLES = (
    *("Add a dark theme", "Show the size of attachments", "Remember the column widths", "Translate the help pages"),
    *("Offer a weekly summary", "Warn before a session ends", "Allow a second mail address", "Sort names by surname"),
    *("Keep drafts of messages", "Support paper size A5", "Mark overdue issues", "Explain the error codes"),
    *("Add a print button", "Shorten the start page", "List the open sessions", "Copy a link with one click"),
    *("Undo the last change", "Colour the priorities"),
)
_REMARKS = (
    *("Please retest with the next build.", "The log is with the operators.", "This blocks the training course."),
    *("A workaround is in the manual.", "The fix is under review.", "Two more customers asked about it."),
    *("It may be the same cause as before.", "Not urgent for the next release.", "I can show it on Monday."),
    *("The old version did this too.", "Waiting for an answer from sales.", "Tests for it are missing."),
    *(
        "Only the night shift sees it.",
        "The screenshot is on its way.",
        "It happens once a week.",
        "Ask me for the data.",
    ),
)
Question = tuple[str, dict[str, Any]]
"""The words of a task, and its evaluation."""
Template = Callable[["Half", random.Random], Iterator[Question]]
"""The tasks of one kind about one half, no two of them the same, in an order that the generator draws."""


_Named = tuple[str, Question]


@dataclass(frozen=True)
class Half:
    """What the tasks of one half are about: its issues, and words of its own for what is written."""

    content: Content
    open: Sequence[Issue]
    """Issues that are listed on the start page."""
    every: Sequence[Issue]
    titles: Sequence[str]
    remarks: Sequence[str]
    seed: str


def write_tasks(folder: Path, seed: int = SEED) -> None:
    """Write one file for each split."""
    for split, tasks in all_tasks(seed).items():
        lines = ",\n".join(json.dumps(task) for task in tasks)
        write_text(folder / f"{split}.json", f"[\n{lines}\n]\n")


def all_tasks(seed: int = SEED) -> dict[str, list[dict[str, Any]]]:
    """The tasks by split, in WebArena's raw format, with `template` as a word."""
    everything = content(seed)
    train, test = halves(everything, seed)
    drawn = {
        split: _drawn(train, COUNTS[split], first) for split, first in (("train", 0), ("validation", COUNTS["train"]))
    }
    drawn["test"] = [*_drawn(test, COUNTS["test"], 0), *_drawn(test, COUNTS["test"] - 1, 0, HELD_OUT)]
    return {
        split: [_raw(split, number, *named) for number, named in enumerate(tasks)] for split, tasks in drawn.items()
    }


def halves(everything: Content, seed: int = SEED) -> tuple[Half, Half]:
    """The half of training and that of the test: every issue is in one of them, as many open ones in each."""
    rng = random.Random(f"halves {seed}")
    is_open = [issue for issue in everything.issues if issue.status != RESOLVED]
    done = [issue for issue in everything.issues if issue.status == RESOLVED]
    titles, remarks = list(_TITLES), list(_REMARKS)
    for words in (is_open, done, titles, remarks):
        rng.shuffle(words)  # type: ignore[arg-type]
    parts = []
    for half in (0, 1):
        opened = is_open[half::2]
        every = [*opened, *done[half::2]]
        rng.shuffle(every)
        parts.append(Half(everything, opened, every, titles[half::2], remarks[half::2], f"half {half} {seed}"))
    return parts[0], parts[1]


def _drawn(half: Half, count: int, first: int, templates: dict[str, Template] | None = None) -> list[_Named]:
    """`count` tasks of each template, after the `first` ones."""
    return [
        (name, question)
        for name, template in (templates or TEMPLATES).items()
        for question in islice(template(half, random.Random(f"{half.seed} {name}")), first, first + count)
    ]


def _raw(split: str, number: int, template: str, question: Question) -> dict[str, Any]:
    intent, evaluation = question
    return {
        "task_id": f"roundup-{split}-{number}",
        "sites": ["tracker"],
        "require_login": False,
        "storage_state": None,
        "start_url": HOME,
        "geolocation": None,
        "require_reset": False,
        "intent_template": template,
        "intent": intent,
        "eval": {"reference_answers": None, "reference_url": "", "program_html": [], "string_note": "", **evaluation},
    }


# --- Templates.


def _answer(text: str) -> dict[str, Any]:
    return {"eval_types": ["string_match"], "reference_answers": {"exact_match": text}}


def _ends_on(path: str) -> dict[str, Any]:
    return {"eval_types": ["url_match"], "reference_url": f"__TRACKER__/{path}", "url_note": "GOLD in PRED"}


def _page_has(number: int, **fields: str) -> dict[str, Any]:
    """The issue of a number has these values, by the name of the form's field."""
    return {
        "eval_types": ["program_html"],
        "program_html": [
            {
                "url": f"__TRACKER__/issue{number}",
                "locator": _LOCATORS[field],
                "required_contents": {"exact_match": text},
            }
            for field, text in fields.items()
        ],
    }


_LOCATORS = {
    **{
        name: f"document.querySelector('select[name={name}]').selectedOptions[0].text"
        for name in ("status", "priority", "assignedto", "milestone")
    },
    "title": "document.querySelector('form[name=itemSynopsis] input[name=title]').value",
    "note": "document.querySelector('table.messages td.content').innerText",
}


def _status(half: Half, rng: random.Random) -> Iterator[Question]:
    for issue in half.open:
        yield f"What is the status of the issue '{issue.title}'?", _answer(issue.status)


def _assignee(half: Half, rng: random.Random) -> Iterator[Question]:
    for issue in half.open:
        if issue.assignee:
            yield f"Who is the issue '{issue.title}' assigned to? Give the user name.", _answer(issue.assignee)


def _milestone(half: Half, rng: random.Random) -> Iterator[Question]:
    for issue in half.open:
        yield f"Which milestone is the issue '{issue.title}' planned for?", _answer(issue.milestone)


def _keyword(half: Half, rng: random.Random) -> Iterator[Question]:
    for issue in half.open:
        yield f"Which keyword does the issue '{issue.title}' have?", _answer(issue.keyword)


def _open(half: Half, rng: random.Random) -> Iterator[Question]:
    for issue in half.open:
        yield f"Open the issue '{issue.title}'.", _ends_on(f"issue{half.content.number(issue)}")


def _show(half: Half, rng: random.Random) -> Iterator[Question]:
    for issue in half.every:
        number = half.content.number(issue)
        yield f"Show the issue with the number {number}.", _ends_on(f"issue{number}")


def _changes(field: str, words: str, value: str, values: Sequence[str]) -> Template:
    """Tasks that set a field of an issue, whose value is the attribute `value`, to another one of `values`."""

    def template(half: Half, rng: random.Random) -> Iterator[Question]:
        for issue in half.open:
            choices = [one for one in values or _names(half, field) if one != getattr(issue, value)]
            chosen = rng.choice(choices)
            evaluation = _page_has(half.content.number(issue), **{field: chosen})
            yield words.format(title=issue.title, value=chosen), evaluation

    return template


def _names(half: Half, field: str) -> list[str]:
    everything = half.content
    return [one.name for one in (everything.users if field == "assignedto" else everything.milestones)]


def _note(half: Half, rng: random.Random) -> Iterator[Question]:
    for number, issue in enumerate(half.open):
        text = half.remarks[number % len(half.remarks)]
        yield f"Add the note '{text}' to the issue '{issue.title}'.", _page_has(half.content.number(issue), note=text)


def _report(half: Half, rng: random.Random) -> Iterator[Question]:
    new = len(half.content.issues) + 1
    for priority in rng.sample(PRIORITIES, len(PRIORITIES)):
        for title in rng.sample(half.titles, 2):
            words = f"Report a new issue with the title '{title}' and the priority {priority}."
            yield words, _page_has(new, title=title, priority=priority)


def _phone(half: Half, rng: random.Random) -> Iterator[Question]:
    for user in half.content.users:
        yield f"What is the phone number of {user.real_name}?", _answer(user.phone)


def _number(half: Half, rng: random.Random) -> Iterator[Question]:
    for issue in half.open:
        yield f"What is the number of the issue '{issue.title}'?", _answer(str(half.content.number(issue)))


def _creator(half: Half, rng: random.Random) -> Iterator[Question]:
    for issue in half.open:
        yield f"Who reported the issue '{issue.title}'? Give the user name.", _answer(issue.creator)


def _rename(half: Half, rng: random.Random) -> Iterator[Question]:
    for issue, title in zip(half.open, rng.sample(half.titles, len(half.titles)), strict=False):
        words = f"Change the title of the issue '{issue.title}' to '{title}'."
        yield words, _page_has(half.content.number(issue), title=title)


TEMPLATES: dict[str, Template] = {
    "status": _status,
    "assignee": _assignee,
    "milestone": _milestone,
    "keyword": _keyword,
    "open": _open,
    "show": _show,
    "set-status": _changes("status", "Set the status of the issue '{title}' to {value}.", "status", STATUSES),
    "set-priority": _changes("priority", "Set the priority of the issue '{title}' to {value}.", "priority", PRIORITIES),
    "assign": _changes("assignedto", "Assign the issue '{title}' to the user {value}.", "assignee", ()),
    "plan": _changes("milestone", "Plan the issue '{title}' for the milestone {value}.", "milestone", ()),
    "note": _note,
    "report": _report,
}
HELD_OUT: dict[str, Template] = {"phone": _phone, "number": _number, "creator": _creator, "rename": _rename}
"""Templates that only the test has."""
