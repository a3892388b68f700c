"""NNetNav (Murty et al., arXiv 2410.02907): supervised rows, one a step, without the page that came next.

A row's user message holds the page, the address, the objective and the actions so far. Rows of one demonstration share
`id`; ids come back with other objectives, so an episode is (id, objective). Steps are put in order by the number of
previous actions, and the page of the next step is the page after an action. The action is the last fenced block: the
rationale before it may hold others.

Rows are first copied, step by step, to a temporary file with an index in memory, so that data of any order and size is
read in the memory of its index.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import IO, Any

from dynaweb.config.files import MALFORMED
from dynaweb.data.importers.episodes import NO_END, ForeignEpisode
from dynaweb.data.importers.pages import ForeignPage, from_axtree_text
from dynaweb.data.importers.report import ImportReport
from dynaweb.data.importers.rows import Row, rows_of
from dynaweb.data.importers.steps import NO_PAGE, ForeignStep, thought_before_fence, webarena_action
from dynaweb.types import Action

_HEAD, _PAST = "OBSERVATION:\n", "\nPREVIOUS ACTIONS:\n"
_URL = re.compile(r"\nURL: ([^\n]*)\nOBJECTIVE: ")
_ASSISTANT = re.compile(r"<\|start_header_id\|>assistant<\|end_header_id\|>|<\|eot_id\|>")
_NUMBERED = re.compile(r"^\d+: ", re.MULTILINE)
SOURCE = "nnetnav"


def episodes(source: str, report: ImportReport) -> Iterator[ForeignEpisode]:
    """The episodes of NNetNav's rows; see `dynaweb.data.importers`. All of them end with a `stop`."""
    index: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:
        for row in rows_of(source, report):
            report.read += 1
            step = _step(row, report)
            if step is None:
                continue
            offsets = index[step["id"], step["goal"]]
            if step["order"] in offsets:
                report.drop("the same step stands there twice")
                continue
            offsets[step["order"]] = spool.tell()
            spool.write(json.dumps(step) + "\n")
        for (name, goal), offsets in index.items():
            steps = [_read_step(spool, offsets[order]) for order in sorted(offsets)]
            last = steps[-1].action
            lacks = NO_END if isinstance(last, Action) and last.kind != "stop" else ""
            yield ForeignEpisode(name, SOURCE, steps, goal=goal, lacks=lacks)


def _step(row: Row, report: ImportReport) -> dict[str, Any] | None:
    """What is needed of a row, or None (and why, in the report)."""
    user, reply = _texts(row)
    prompt = _prompt(user)
    if prompt is None:
        report.drop("its prompt lacks OBSERVATION, URL, OBJECTIVE or PREVIOUS ACTIONS")
        return None
    if "```" not in reply:
        report.drop("its reply has no fenced action")
        return None
    page, url, goal, past = prompt
    past = past.partition("<|eot_id|>")[0]
    name = str(row.get("id") or row.get("task_name") or "")
    order = max(0, len(_NUMBERED.findall(past)) - 1)
    return {
        "id": name,
        "goal": goal.strip(),
        "order": order,
        "url": url.strip(),
        "page": page,
        "reply": reply,
    }


def _prompt(user: str) -> tuple[str, str, str, str] | None:
    """Page, address, goal and past actions. Each part ends at the last place that it can: pages hold any words."""
    _, head, text = user.partition(_HEAD)
    body, end, past = text.rpartition(_PAST)
    last = deque(_URL.finditer(body), maxlen=1)
    if not (head and end and last):
        return None
    return body[: last[0].start()], last[0][1], body[last[0].end() :], past


def _texts(row: Row) -> tuple[str, str]:
    """The user message and the reply, from `messages` where there are some, else from `prompt` and `output`.

    Lines may end as on Windows, and a message may be a list of parts.
    """
    messages = row.get("messages")
    user, reply = row.get("prompt", ""), _ASSISTANT.sub("", _text(row.get("output")))
    if isinstance(messages, list) and messages:
        texts = {str(part.get("role")): _text(part.get("content")) for part in messages if isinstance(part, dict)}
        user, reply = texts.get("user", ""), texts.get("assistant", reply)
    return _text(user).replace("\r\n", "\n"), reply.replace("\r\n", "\n")


def _text(content: Any) -> str:
    """The text of a message, whole or in parts; '' where it has none."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _read_step(spool: IO[str], offset: int) -> ForeignStep:
    spool.seek(offset)
    data = json.loads(spool.readline())
    page = _page(data)
    action = webarena_action(data["reply"], page) if page is not None else NO_PAGE
    return ForeignStep(page, action, data["order"], thought_before_fence(data["reply"]), data["reply"])


def _page(data: dict[str, Any]) -> ForeignPage | None:
    try:
        return from_axtree_text(data["page"], data["url"])
    except MALFORMED:
        return None
