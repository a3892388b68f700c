"""Prompts of policies as files that a recipe names with `policy.prompt`, so that several can be compared in a matrix.

A file is TOML. What it leaves out is as in the prompt layer that it changes:

    system = "You are an assistant that navigates the web."
    user = '''
    OBSERVATION:
    {page}
    URL: {url}
    OBJECTIVE: {goal}
    PREVIOUS ACTIONS:
    {history}'''
    reply = "{reason} In summary, the next action I will perform is ```{action}```"
    grammar = "webarena"
    past_actions = 10
    past_pages = 0

`{page}` stands on a line of its own. `grammar` is how actions are written, `past_actions` how many earlier ones are
shown (all, if it is left out), `past_pages` how many of the pages before this one (none, if it is left out): they stand
where `user` has a line `{pages}`, or above the earlier actions where there is no `user`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from string import Formatter
from typing import Any

from dynaweb.errors import ConfigError, MissingError, hint

_USER_SLOTS = ("goal", "history", "url", "page", "pages")
_REPLY_SLOTS = ("reason", "action")
_FENCE = "```"
_FENCED = re.compile(r"```(?:\w*\n)?(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A prompt of a policy. Empty texts, and None, leave what the prompt layer has."""

    system: str = ""
    user: str = ""
    reply: str = ""
    grammar: str = ""
    past_actions: int | None = None
    past_pages: int = 0

    @classmethod
    def read(cls, path: Path) -> PromptFile:
        """Read a file. Raises `MissingError` where there is none, and `ConfigError` saying what is wrong in it."""
        import tomllib

        try:
            data = tomllib.loads(path.read_text("utf-8"))
        except (FileNotFoundError, IsADirectoryError) as error:
            raise MissingError(f"there is no prompt file {path} (policy.prompt)") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"the prompt file {path} cannot be read: {error}") from error
        return cls(**_checked(path, data))

    def question(self, goal: str, history: str, url: str, pages: str = "") -> tuple[str, str]:
        """The user's text before and after the page; `pages` are earlier ones."""
        before, _, after = self.user.partition("{page}")
        values = {"goal": goal, "history": history, "url": url, "pages": pages}
        return before.format(**values), after.format(**values)

    def answer(self, reason: str, action: str) -> str:
        """A reply as it is trained on."""
        return self.reply.format(reason=reason, action=action)

    def parts(self, text: str) -> tuple[str, str] | None:
        """Reasoning, and what holds the action, of a reply that has the form of `reply`; None for another form."""
        if not self.reply:
            return None
        if _FENCE in self.reply:
            fences = list(_FENCED.finditer(text))
            return (text[: fences[-1].start()].strip(), fences[-1][1].strip()) if fences else None
        reason, mark, action = text.rpartition(self._mark) if self._mark else ("", "", "")
        return (reason.strip(), action.strip()) if mark else None

    def action_start(self, text: str) -> int | None:
        """Where the action begins in a reply that has the form of `reply`, without a fence; None for another form."""
        if not self._mark or self._mark not in text:
            return None
        return text.rindex(self._mark) + len(self._mark)

    @property
    def _mark(self) -> str:
        """What stands before the action on its line of `reply`."""
        return self.reply.partition("{action}")[0].rpartition("\n")[2].rpartition("}")[2].strip()


def _checked(path: Path, data: Mapping[str, Any]) -> Mapping[str, Any]:
    known = {field.name: (int if field.name.startswith("past_") else str) for field in fields(PromptFile)}
    for name, value in data.items():
        if name not in known:
            raise ConfigError(f"{path}: a prompt has no {name!r}; {hint(name, tuple(known))}")
        if type(value) is not known[name] or (isinstance(value, int) and value < 0):
            kind = f"a number of {name.removeprefix('past_')}, 0 or more" if known[name] is int else "a text"
            raise ConfigError(f"{path}: {name} is {value!r}, and has to be {kind}")
    for name, slots, needed in (("user", _USER_SLOTS, ("goal", "page")), ("reply", _REPLY_SLOTS, ("action",))):
        _check_slots(path, name, str(data.get(name, "")), slots, needed)
    user = str(data.get("user", ""))
    for slot in ("{page}", "{pages}"):
        if slot in user and slot not in user.split("\n"):
            raise ConfigError(f"{path}: in user, {slot} has to stand alone on a line")
    if user and bool(data.get("past_pages")) != ("{pages}" in user):
        raise ConfigError(
            f"{path}: past_pages says how many earlier pages are shown, and a line {{pages}} of user where; give both, "
            "or neither"
        )
    return data


def _check_slots(path: Path, name: str, text: str, slots: tuple[str, ...], needed: tuple[str, ...]) -> None:
    if not text:
        return
    try:
        found = [slot for _, slot, _, _ in Formatter().parse(text) if slot is not None]
    except ValueError as error:
        raise ConfigError(f"{path}: {name} is no template ({error}); write {{{{ and }}}} for braces") from error
    for slot in found:
        if slot not in slots:
            raise ConfigError(
                f"{path}: {name} has no slot {{{slot}}}; valid: {', '.join(f'{{{one}}}' for one in slots)}"
            )
    for slot in needed:
        if found.count(slot) != 1:
            raise ConfigError(f"{path}: {name} needs {{{slot}}} exactly once, and has it {found.count(slot)} times")
