"""One error type per boundary, each with the exit code that the command line gives it.

An error message says what was tried, what is valid (`hint` names the nearest), and what to do next. A bad rollout is
data, not an exception: parse errors, stale elements and refused deltas travel inside `Step.error` and
`Prediction.error`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_MISSING = 3
EXIT_INTERRUPTED = 130


class DynawebError(Exception):
    """Base of every error that a user can act on; `exit_code` is what the process returns."""

    exit_code = EXIT_FAILED


class ConfigError(DynawebError):
    """A recipe, an override or an argument is not valid. The message lists every problem found."""

    exit_code = EXIT_USAGE


class MissingError(DynawebError):
    """A plugin, an extra, a browser or a model that was asked for is not there."""

    exit_code = EXIT_MISSING


class PluginError(DynawebError):
    """A plugin that was asked for is broken; the message names its package and version."""

    exit_code = EXIT_MISSING


class InfrastructureError(DynawebError):
    """The browser, a site or a server failed; the episode gets no reward."""


class BrowserError(InfrastructureError):
    """Chromium could not be started, or a page could not be read within its deadline."""


class EngineError(DynawebError):
    """A language model could not be loaded, or could not produce tokens."""


class CheckpointError(DynawebError):
    """A checkpoint or a run folder is missing, truncated, or belongs to another recipe."""


class StorageError(DynawebError):
    """The disk is full or read-only. What was finished is kept; once it can be written, `--resume` goes on."""


class FileError(DynawebError):
    """A file or folder cannot be read or written: no permission, a folder where a file belongs, too long a name."""


class ImageError(InfrastructureError):
    """A picture is missing, damaged, too large, or no PNG. An episode that cannot go on without it gets no reward."""


class TrainingError(DynawebError):
    """Training cannot go on: repeated non-finite updates, or a batch that carries no agent token."""


class DivergedError(TrainingError):
    """Weights, or what a model computes with them, are not finite: there is nothing sound left to go on from."""


class Interrupted(DynawebError):
    """SIGINT or SIGTERM arrived; the state was saved and `--resume` goes on from it."""

    exit_code = EXIT_INTERRUPTED


HINTED = 40
"""Names that a hint lists; more would hide what it says."""


def nearest(word: str, valid: Iterable[str], *, count: int = 3) -> list[str]:
    """The valid words that look most like `word`, best first; empty when none is near."""
    from difflib import get_close_matches  # only needed once something is wrong

    by_fold = {name.casefold(): name for name in valid}
    # Of two letters, one wrong is half.
    cutoff = 0.5 if len(word) <= 3 else 0.6
    return [by_fold[match] for match in get_close_matches(word.casefold(), by_fold, n=count, cutoff=cutoff)]


def hint(word: str, valid: Iterable[str]) -> str:
    """A clause for an error message: `did you mean 'x'? valid: a, x` (or `there is none` when nothing is valid).

    Of a long list only the beginning is shown.
    """
    names = sorted(set(valid))
    if not names:
        return "there is none"
    near = nearest(word, names)
    question = f"did you mean {' or '.join(repr(name) for name in near)}? " if near else ""
    more = f" and {len(names) - HINTED} more" if len(names) > HINTED else ""
    return f"{question}valid: {', '.join(names[:HINTED])}{more}"


_TELLING = re.compile(
    r"error\b|\bfail|\bfatal|\bunable|\bcannot|could not|not found|\bdenied|no such|^E: ", re.IGNORECASE
)
_FRAME = re.compile(r"\s*(at |File \"|node:|\^|Traceback \(most|The above exception was|During handling of the above)")
"""Lines of a stack trace: they say where, not what."""


def output_end(text: str, lines: int = 3, width: int = 300) -> str:
    """What a program printed when it failed, for an error message: the first line that names an error, the last ones,
    and its last line with words, in their order, joined by ` | `; '' where it printed nothing.

    Brackets that close a dump, stack frames and empty lines are left out, so that `}` never stands for a reason.
    """
    every = text.splitlines()
    # Below the `File "..."` of Python's frames may stand the line of the program that was run.
    frames = {at for at, line in enumerate(every) if line.startswith('  File "')}
    sources = {at for at, line in enumerate(every) if at - 1 in frames and line.startswith("    ")}
    worded = [
        line.strip()
        for at, line in enumerate(every)
        if at not in sources and re.search(r"[^\W\d_]{2}", line) and not _FRAME.match(line)
    ]
    telling = [line for line in worded if _TELLING.search(line)]
    # Of a dump after the error, such as `code: 'ENOTFOUND'`, nothing is needed where lines name the error.
    last = worded[-1:] if not telling or not re.match(r"\w+: '?[\w.-]+'?,?$", worded[-1]) else []
    ends = [*telling[1:], *last]
    chosen = [telling[0], *ends[max(0, len(ends) - lines + 1) :]] if telling else worded[-lines:]
    return " | ".join(line[:width] for line in dict.fromkeys(chosen))
