"""Every regular expression of dynaweb takes time in proportion to its text, whatever the text repeats.

The expressions are read from the source, so that a new one is tried without being listed. Texts are made from each
expression itself: what each of its parts matches, repeated, alone and in pairs, after beginnings that match and before
an end that does not.
"""

from __future__ import annotations

import ast
import itertools
import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SCANS = {"search", "finditer", "findall", "sub", "subn", "split"}
ANCHORED = {"match", "fullmatch"}
SHORT = 1_500
"""Characters of a text in the first look; where that takes `SLOW` seconds, the time of longer ones is compared."""
SLOW = 0.002
GROWTH = 3.0
"""What twice the text may take, in times of the text."""
MADE_WHEN_RUN = {
    "dynaweb/masking.py": "secrets of the user, or nothing, joined",
    "dynaweb/policy/template.py": "marks of a chat template, joined",
    "dynaweb/web/static/forms.py": "a page's own `pattern`",
    "plugins/envs/dynaweb_env_miniwob/plan.py": "what a plan looks for in the goals of MiniWoB's own pages",
    "plugins/envs/dynaweb_env_webarena/copies.py": "origins of sites, each literal, one of them",
}
"""Expressions whose text is known only when it runs, by file, and what they are."""


@dataclass(frozen=True)
class Pattern:
    """An expression, its flags, and whether it is anchored where it is used."""

    where: str
    text: str
    flags: int
    scans: bool

    def __str__(self) -> str:
        return self.where


def _files() -> list[Path]:
    return sorted([*ROOT.glob("dynaweb/**/*.py"), *ROOT.glob("plugins/**/*.py")])


def patterns() -> Iterator[Pattern]:
    for path in _files():
        source = path.read_text(encoding="utf-8")
        if "import re\n" not in source:
            continue
        tree = ast.parse(source)
        values = constants(tree)
        for call, name in calls(tree):
            method = call.func.attr  # type: ignore[attr-defined]
            text = value_of(call.args[0], values) if call.args else None
            if text is None:
                continue
            if method == "compile":
                used = set(re.findall(rf"\b{re.escape(name)}\.(\w+)", source)) if name else SCANS
                scans = bool(used & SCANS) or not used & ANCHORED
            else:
                scans = method in SCANS
            flags = sum({getattr(re, flag).value for flag in re.findall(r"re\.([A-Z]+)\b", ast.unparse(call))})
            yield Pattern(f"{path.relative_to(ROOT).as_posix()}:{call.lineno}", text, flags, scans)


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Calls of `re.*`, with the name that the result of a `compile` gets."""
    names = {
        id(node.value): node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in SCANS | ANCHORED | {"compile"}
        ):
            yield node, names.get(id(node), "")


def constants(tree: ast.Module) -> dict[str, str]:
    """Texts that the module's own names stand for."""
    values: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = value_of(node.value, values)
            if value is not None:
                values[node.targets[0].id] = value
    return values


def value_of(node: ast.expr, values: dict[str, str]) -> str | None:
    """The text of an expression; a word stands for what is only known when it runs. None for what is no text."""
    if isinstance(node, ast.Constant):
        value = node.value
        return value if isinstance(value, str) else value.decode("latin-1") if isinstance(value, bytes) else None
    if isinstance(node, ast.Name):
        return values.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (value_of(node.left, values) or "xy") + (value_of(node.right, values) or "xy")
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else value_of(part.value, values) or "xy"  # type: ignore[attr-defined]
            for part in node.values
        )
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("re.escape",):
        return "xy"
    return None


def samples(tree: Any) -> tuple[list[str], str]:
    """(a text for each part of an expression, a text that the whole may match)."""
    parts: list[str] = []
    whole = word = ""
    for code, value in tree:
        inner: list[str] = []
        text = ""
        # Letters in a row are tried as one: an opening mark without its closing one.
        word = word + chr(value) if code is codes.LITERAL else ""
        if code is codes.LITERAL:
            text = chr(value)
        elif code is codes.NOT_LITERAL:
            text = "a" if value != ord("a") else "b"
        elif code is codes.ANY:
            text = "a"
        elif code is codes.IN:
            text = member(value)
            inner = [chr(number) for kind, number in value if kind is codes.LITERAL][:6]
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            inner, one = samples(value[2])
            text = one * max(1, value[0])
        elif code is codes.SUBPATTERN:
            inner, text = samples(value[3])
        elif code is codes.ATOMIC_GROUP:
            inner, text = samples(value)
        elif code is codes.BRANCH:
            options = [samples(option) for option in value[1]]
            inner = [part for option in options for part in (*option[0], option[1])]
            text = options[0][1]
        elif code is codes.ASSERT:
            inner, _ = samples(value[1])
        whole += text
        parts += [*([word] if len(word) > 2 else []), text, *inner]
    return [part for part in dict.fromkeys(parts) if part], whole


def member(choices: Any) -> str:
    """A character of a class; of a class that only says what is not in it, one that is not said."""
    negated = choices[0][0] is codes.NEGATE
    inside = "".join(_members(choices))
    if not negated:
        return inside[0] if inside else "a"
    return next(char for char in "a1 -\n\t%~\x01" if char not in inside)


def _members(choices: Any) -> Iterator[str]:
    named = {
        codes.CATEGORY_DIGIT: "1",
        codes.CATEGORY_SPACE: " \n\t",
        codes.CATEGORY_WORD: "a1_",
        codes.CATEGORY_NOT_WORD: "\n -",
        codes.CATEGORY_NOT_SPACE: "a1",
        codes.CATEGORY_NOT_DIGIT: "a ",
    }
    for code, value in choices:
        if code is codes.LITERAL:
            yield chr(value)
        elif code is codes.RANGE:
            yield chr(value[0])
            yield chr(value[1])
        elif code is codes.CATEGORY:
            yield named[value]


def texts(pattern: Pattern) -> Iterator[tuple[str, str, str]]:
    """(beginning, what is repeated, end) of texts to try, of which the middle is repeated."""
    parts, whole = samples(parser.parse(pattern.text, pattern.flags))
    single = list(dict.fromkeys([*(part for part in parts if len(part) < 40), whole[:40], " ", "\n", "\\"]))[:14]
    pumps = [*single, *(a + b for a, b in itertools.permutations(single, 2))]
    starts = list(dict.fromkeys(["", whole[: len(whole) // 2], whole[:-1], whole]))
    ends = ["\x02", "\n\x02"] + (
        [] if pattern.scans else [char for char in single if len(char) == 1 and not char.isalnum()]
    )
    for start in starts:
        for pump in pumps:
            for end in ends if len(pump) <= 2 else ends[:1]:
                yield start, pump, end


def seconds(pattern: Pattern, compiled: re.Pattern[str], text: str) -> float:
    begun = time.thread_time()
    if pattern.scans:
        for _ in compiled.finditer(text):
            pass
    else:
        compiled.match(text)
        compiled.fullmatch(text)
    return time.thread_time() - begun


def slow(pattern: Pattern) -> list[str]:
    """The repeated texts whose time grows faster than they do."""
    compiled = re.compile(pattern.text, pattern.flags)
    wrong = []
    for start, pump, end in texts(pattern):

        def long(times: int, start: str = start, pump: str = pump, end: str = end) -> str:
            return start + pump * (times * SHORT // len(pump)) + end

        # Short ones first: what doubles with each character would never end.
        for few in (24, 150):
            if min(seconds(pattern, compiled, start + pump * (few // len(pump)) + end) for _ in range(2)) > SLOW:
                wrong.append(f"{start!r} + {pump!r} * n + {end!r}: more than {SLOW} s for {few} characters")
                break
        if wrong:
            break
        if seconds(pattern, compiled, long(1)) < SLOW:
            continue
        before, after = (min(seconds(pattern, compiled, long(times)) for _ in range(3)) for times in (1, 2))
        if after > SLOW and after > GROWTH * before:
            wrong.append(f"{start!r} + {pump!r} * n + {end!r}: {before:.4f} s, twice as long {after:.4f} s")
        if wrong:
            break
    return wrong


ALL = list(patterns())


def test_the_source_is_read() -> None:
    """Nearly all calls of `re` hold a text that is known; the rest is named, with why."""
    assert len(ALL) > 120
    unread = set()
    for path in _files():
        source = path.read_text(encoding="utf-8")
        if "import re\n" not in source:
            continue
        tree = ast.parse(source)
        values = constants(tree)
        if any(call.args and value_of(call.args[0], values) is None for call, _ in calls(tree)):
            unread.add(path.relative_to(ROOT).as_posix())
    assert unread == MADE_WHEN_RUN.keys(), "an expression that is not tried: name its file in MADE_WHEN_RUN, and why"


@pytest.mark.parametrize("folder", sorted({one.where.rpartition("/")[0] for one in ALL}))
def test_every_expression_is_linear(folder: str) -> None:
    """A text that takes longer than a few milliseconds at 3,000 characters takes at most three times that at 6,000."""
    wrong = {
        f"{one.where} {one.text[:60]!r}": why
        for one in ALL
        if one.where.rpartition("/")[0] == folder and (why := slow(one))
    }
    assert not wrong, "\n".join(f"{where}: {why[0]}" for where, why in wrong.items())


def test_expressions_that_are_not_linear_are_seen() -> None:
    """The kinds of mistake that are easily made."""
    for text, flags, scans in (
        (r"'((?:[^'\\\n]|\\[^\n])*)'", 0, True),
        (r"^\W*(REASON|CHANGE)\W*:\s*(.+)$", re.MULTILINE, True),
        (r"[ ;]*(?:\[(.*)\]|([^\[\]\n]*))\s*", 0, False),
        (r"(a+)+b", 0, False),
        (r"\s+where", 0, True),
        (r"<!--.*?-->", re.DOTALL, True),
    ):
        assert slow(Pattern("here", text, int(flags), scans)), text
    assert not slow(Pattern("here", r"[a-z]+ \d", 0, False))
