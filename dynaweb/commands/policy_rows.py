"""Whole episodes for other trainers: rows that a policy learns from, in the prompt format that a run would use.

A row is one step of a usable demonstration, as SFT sees it.

    trl            `{"input_ids": [...], "labels": [...], "completion_mask": [...]}`: the very ids of a run, loss on the
                   reply only
    trl, messages  `{"prompt": [...], "completion": [...], "chat_template_kwargs": {...}}`: TRL applies the template
    llamafactory   ShareGPT form, and a `dataset_info.json` next to it that names it; it applies a template of its own
    parquet        one row a step, all columns text, and no prompt format
    datasets       the same rows as a folder for `datasets.load_from_disk`

Where the recipe shows pages as pictures (`observation.modality`), rows have `images`: paths of the files in
`<name of the target>.images/` beside the target, relative to its folder. In messages of `trl` each stands as a part
`{"type": "image"}`, in those of `llamafactory` as `<image>`. A row whose picture is missing is left out. Columns have a
`screenshot` wherever a page has one.

Messages give the same ids as a run where a trainer applies the model's template as it is, with these arguments; a page
that writes control tokens gives others, since a template reads them out of its text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.data.demonstrations import as_expert, refused, score_of, unusable
from dynaweb.data.exports import PictureFiles, as_text, check_target, write_columns, write_lines, write_sharegpt
from dynaweb.errors import ConfigError
from dynaweb.rollout.group import with_tokens
from dynaweb.types import History, Trajectory
from dynaweb.web.page.text import render

if TYPE_CHECKING:
    from dynaweb.policy.prompt_formats import ChatFormat
    from dynaweb.protocols import PromptFormat

COLUMNS = (
    *("trajectory", "task", "goal", "step", "url", "observation", "action", "reasoning", "reply"),
    *("error", "end", "score", "source"),
)
"""Columns of `parquet` and `datasets`."""
PICTURE = "screenshot"
"""The column of stores with pictures."""
IMAGE_PART = {"type": "image"}
"""Where a picture stands in a message, as chat templates have it."""
IGNORED = -100
"""The label of an id that no loss is taken on."""


@dataclass(frozen=True, slots=True)
class Exported:
    """How many rows were written, where, and why episodes were left out."""

    rows: int
    path: Path
    dropped: Counter[str]


def export_episodes(
    trajectories: Iterable[Trajectory], to: str, out: Path, prompts: PromptFormat | None, *, messages: bool = False
) -> Exported:
    """Write whole episodes for another tool; those that are no demonstration are counted, except by the plain rows.

    Raises `ConfigError` for an unknown target, for messages of a prompt format that has none, and where no episode is
    usable.
    """
    check_target(to, trajectories, out)
    pictures = PictureFiles.of(trajectories, out)
    if to in ("parquet", "datasets"):
        steps = (row for trajectory in trajectories for row in plain_rows(trajectory, pictures))
        columns = COLUMNS if pictures is None else (*COLUMNS, PICTURE)
        return Exported(write_columns(steps, columns, to, out), out, Counter())
    if prompts is None:
        raise ConfigError(f"--to {to} needs a prompt format; name a recipe or a model")
    dropped: Counter[str] = Counter()
    usable = _usable(trajectories, dropped)
    rows: Iterator[dict[str, Any]]
    if to == "trl" and not messages:
        rows = (row for one in usable for row in id_rows(one, prompts, pictures))
    else:
        chat, of_each = _chat(prompts), message_rows if to == "trl" else sharegpt_rows
        rows = (row for one in usable for row in of_each(one, chat, pictures))
    first = next(rows, None)
    if first is None:
        raise ConfigError(refused(str(getattr(trajectories, "path", "the store")), dropped))
    rows = chain([first], rows)
    count = write_lines(rows, out) if to == "trl" else write_sharegpt(rows, out, images="images" in first)
    return Exported(count, out, dropped)


def _usable(trajectories: Iterable[Trajectory], dropped: Counter[str]) -> Iterator[Trajectory]:
    for trajectory in trajectories:
        reason = unusable(trajectory)
        if reason:
            dropped[reason] += 1
        else:
            yield as_expert(trajectory)


def _chat(prompts: PromptFormat) -> ChatFormat:
    from dynaweb.policy.prompt_formats import ChatFormat

    if not isinstance(prompts, ChatFormat):
        raise ConfigError(
            f"the prompt format of this model ({type(prompts).__name__}) has no messages, only ids; use --to trl, or a "
            "model with a chat template"
        )
    if not prompts.tokenizer.chat_template:
        raise ConfigError("the tokenizer of this model has no chat template for a trainer to apply; use --to trl")
    return prompts


def id_rows(
    trajectory: Trajectory, prompts: PromptFormat, pictures: PictureFiles | None = None
) -> Iterator[dict[str, Any]]:
    """Ids of prompt and reply; labels and a mask say both which of them are the reply's, since versions of TRL differ
    in which they read. `images` are those that the prompt refers to."""
    for step in with_tokens(trajectory, prompts).steps:
        images = [pictures.file(one) for one in step.prompt.images] if pictures is not None else []
        # Ids that stand for a picture which is missing would be trained on as something else.
        if step.response_ids and all(images):
            prompt, reply = list(step.prompt.ids), list(step.response_ids)
            yield {
                "input_ids": prompt + reply,
                "labels": [IGNORED] * len(prompt) + reply,
                "completion_mask": [0] * len(prompt) + [1] * len(reply),
                **({"images": images} if images else {}),
            }


def message_rows(
    trajectory: Trajectory, chat: ChatFormat, pictures: PictureFiles | None = None
) -> Iterator[dict[str, Any]]:
    """TRL's conversational prompt and completion."""
    for prompt, completion, images in _turns(trajectory, chat, pictures):
        more = {"images": images} if images else {}
        yield {
            "prompt": prompt,
            "completion": completion,
            "chat_template_kwargs": chat.template.arguments,
            **more,
        }


def sharegpt_rows(
    trajectory: Trajectory, chat: ChatFormat, pictures: PictureFiles | None = None
) -> Iterator[dict[str, Any]]:
    """LLaMA-Factory's ShareGPT form."""
    for prompt, completion, images in _turns(trajectory, chat, pictures):
        system = "".join(_text(turn) for turn in prompt if turn["role"] == "system")
        user = "\n\n".join(_text(turn) for turn in prompt if turn["role"] == "user")
        turns = [{"from": "human", "value": user}, {"from": "gpt", "value": _text(completion[0])}]
        yield {"conversations": turns, "system": system, **({"images": images} if images else {})}


Turns = list[dict[str, Any]]


def _turns(
    trajectory: Trajectory, chat: ChatFormat, pictures: PictureFiles | None
) -> Iterator[tuple[Turns, Turns, list[str]]]:
    """Prompt, reply and pictures of each step; a prompt has a part for each picture, in their order."""
    history = History()
    for step in trajectory.steps:
        if step.action is None:
            continue
        if not step.error:
            messages = chat.policy_messages(trajectory.task, step.observation, history, step.action, step.reasoning)
            prompt, completion = messages
            sees = any(IMAGE_PART in turn["content"] for turn in prompt if not isinstance(turn["content"], str))
            shown = chat.policy_images(trajectory.task, step.observation) if sees and pictures is not None else ()
            paths = [pictures.file(image) for image in shown] if pictures is not None else []
            if not sees or (paths and all(paths)):
                yield prompt, completion, paths
        history.add(step.observation, step.action)


def _text(turn: dict[str, Any]) -> str:
    content = turn["content"]
    if isinstance(content, str):
        return content
    return "".join("<image>" if part == IMAGE_PART else str(part["text"]) for part in content)


def plain_rows(trajectory: Trajectory, pictures: PictureFiles | None = None) -> Iterator[dict[str, str]]:
    """One row of `COLUMNS` for each step, with `PICTURE` where there are pictures."""
    score = score_of(trajectory)
    for at, step in enumerate(trajectory.steps):
        values = (
            *(trajectory.id, trajectory.task.id, trajectory.task.intent, str(at), step.observation.url),
            *(render(step.observation, "compact"), as_text(step.action), step.reasoning, step.reply, step.error),
            *(trajectory.end, "" if score is None else json.dumps(score), trajectory.source),
        )
        row = dict(zip(COLUMNS, values, strict=True))
        yield row if pictures is None else {**row, PICTURE: pictures.path(step.observation)}
