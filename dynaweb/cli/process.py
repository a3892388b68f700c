"""How the process behaves: logging on stderr, signals, and one clear message for an error, with whose fault it is."""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from dynaweb.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_MISSING, DynawebError, FileError
from dynaweb.masking import masked, printable, watch_log

if TYPE_CHECKING:
    import traceback

    from dynaweb.plugin.discovery import Plugin

DEBUG = "dynaweb.debug"
ENV_DEBUG = "DYNAWEB_DEBUG"
WAIT = 2.0
"""Seconds after a signal without which an end is too slow."""
STILL = "still saving what is done, or waiting for something that does not answer; a second Ctrl-C ends it at once"

SOON = 0.1
"""Seconds in which a signal that has arrived is known of."""

_signals: list[int] = []
_stopped = threading.Event()
"""Set by the first SIGINT or SIGTERM."""
_OTHER = "give another path"
_WHY = {
    errno.EISDIR: ("is a folder where a file belongs", f"move it away, or {_OTHER}"),
    errno.ENOTDIR: ("is not a folder, or lies in something that is none", f"move the file away, or {_OTHER}"),
    errno.EEXIST: ("is there already", f"move it away, or {_OTHER}"),
    errno.ENOTEMPTY: ("is a folder that is not empty", f"move it away, or {_OTHER}"),
    errno.ENOENT: ("is not there", _OTHER),
    errno.ENAMETOOLONG: ("has a name that is too long", "give a shorter one"),
    errno.ELOOP: ("is a link that leads to itself", _OTHER),
}
"""What is wrong with a path, and what to do about it."""
_LETTERS = 200
"""Letters of a path that a message shows."""
_LIMITS = {
    errno.EMFILE: "too many files are open; allow more with `ulimit -n`",
    errno.ENFILE: "the machine has too many files open; end other programs, then repeat the command",
    errno.EIO: "a disk failed to read or write; look at the system's log, then repeat the command",
    errno.ENOMEM: "the machine has no memory left; end other programs, then repeat the command",
}


class Group(TyperGroup):
    """The root command: what goes wrong in any command becomes one message on stderr and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Refuse words that no path, name or value can be, as `--out "$UNSET"` gives them."""
        for at, word in enumerate(args):
            if not word:
                where = f"after {args[at - 1]} " if at else ""
                raise typer.BadParameter(f"argument {at + 1} {where}is empty; give a value, or leave it out")
            if word.startswith("--") and word.endswith("=") and word.count("=") == 1:
                raise typer.BadParameter(f"{word} has no value; give one, or leave it out")
            if not _is_text(word):
                raise typer.BadParameter(f"{word!r} is not UTF-8 text; rename that file or folder")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            result = super().invoke(ctx)
            # Here, not when Python ends: a full disk behind stdout is an error like any other.
            sys.stdout.flush()
            return result
        except DynawebError as error:
            if error.exit_code == EXIT_MISSING and _stopped.wait(SOON):
                # Libraries turn a Ctrl-C inside of their imports into errors of these.
                raise self._exit(ctx, "interrupted", EXIT_INTERRUPTED) from error
            raise self._exit(ctx, f"error: {error}", error.exit_code) from error
        except KeyboardInterrupt as error:
            # The task that a second Ctrl-C ended is nobody's now, which asyncio would tell with its traceback.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            raise self._exit(ctx, "interrupted", EXIT_INTERRUPTED) from error
        except BrokenPipeError:
            # The reader of our output has gone, as in `dynaweb tasks list | head`. Python would complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_FAILED) from None
        except typer.Exit:  # as after `--help`, which has to be quick
            raise
        except Exception as error:
            if (message := _message_of(error)) is None:
                raise
            raise self._exit(ctx, message, EXIT_FAILED) from error

    def _exit(self, ctx: Any, message: str, code: int) -> typer.Exit:
        if ctx.meta.get(DEBUG) or os.environ.get(ENV_DEBUG, "") not in ("", "0"):
            import traceback

            traceback.print_exc()
        typer.echo(printable(message), err=True)
        return typer.Exit(code)


def _message_of(error: Exception) -> str | None:
    """What to say of an error that no command foresaw: disks, plugins and files. None for a mistake of our own."""
    from dynaweb.runs.space import storage_error

    if (full := storage_error(error)) is not None:
        return f"error: {full}; give the command again when it can be written to"
    if fault := plugin_fault(error):
        return fault
    denied = file_error(error)
    return None if denied is None else f"error: {denied}"


def _is_text(word: str) -> bool:
    """Whether a word of the command line is text: what is not UTF-8 comes with lone surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def prepare() -> None:
    """Set up streams, logging, signals and imports of a command-line process."""
    _streams()
    watch_log()
    # Else pydantic searches every installed package for plugins of its own, which takes a tenth of the start-up time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Before torch is imported: threads that spin while they wait slow down a browser on the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    handler = _Stderr()
    handler.setFormatter(_Format())
    logger = logging.getLogger("dynaweb")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    signal.signal(signal.SIGTERM, _terminate)
    tell_of_signals()


def _streams() -> None:
    """A stream that the shell has closed reads and writes nothing; what an encoding lacks is escaped, as in JSON."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # In this order each takes the number of the stream that it stands for, before another file can.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = _Masking.of(sys.stdout), _Masking.of(sys.stderr, bars=True)


class _Masking:
    """A stream of text that lets no secret through, and no control character of what others wrote.

    With `bars`, those of a terminal pass: a progress display moves its cursor.
    """

    def __init__(self, stream: Any, bars: bool) -> None:
        self._stream = stream
        self._raw = bars and stream.isatty()

    @classmethod
    def of(cls, stream: Any, *, bars: bool = False) -> Any:
        """The stream itself where it is one of these already."""
        return stream if isinstance(stream, cls) else cls(stream, bars)

    def write(self, text: str) -> int:
        clean = masked(text)
        self._stream.write(clean if self._raw else printable(clean))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _terminate(number: int, frame: FrameType | None) -> None:
    # asyncio turns SIGINT into an orderly cancellation, so SIGTERM takes the same way. In the background of a shell
    # SIGINT is ignored, and nothing but the exception is left.
    if callable(signal.getsignal(signal.SIGINT)):
        signal.raise_signal(signal.SIGINT)
    else:
        raise KeyboardInterrupt


class _Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment: the progress display puts itself there."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


class _Format(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


def tell_of_signals(wait: float = WAIT) -> None:
    """From now on say `STILL` on stderr once, `wait` seconds after the first SIGINT or SIGTERM. Twice is allowed.

    The first Ctrl-C lets a stage save its state. A plugin that blocks never lets it get there, and then nothing in
    Python's own thread can say so; the bytes that the interpreter writes for each signal reach another thread.
    """
    if _signals:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    _signals.extend((reading, writing))
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(reading, wait), name="dynaweb-signals", daemon=True).start()


def _wait(reading: int, wait: float) -> None:
    while os.read(reading, 1)[0] not in (signal.SIGINT, signal.SIGTERM):
        continue
    _stopped.set()
    # An end of the process ends this thread too.
    threading.Event().wait(wait)
    sys.stderr.write(f"{STILL}\n")


def plugin_fault(error: BaseException) -> str:
    """What failed in the code of another package's plugin: the calls from there on, and one sentence. '' for others."""
    import traceback  # here: an error is rare, and `--help` has to be quick

    frames = traceback.extract_tb(error.__traceback__)
    innermost = _innermost(frames)
    if innermost is None:
        return ""
    at, plugins = innermost
    frame = frames[at]
    calls = "".join(traceback.format_list(frames[at:]))
    where = f"{frame.name} ({Path(frame.filename).name}, line {frame.lineno})"
    return f"{calls}error: {_names_of(plugins)} failed in {where}: {type(error).__name__}: {error}"


def _names_of(plugins: list[Plugin]) -> str:
    """One plugin, or where a module holds several, all of them."""
    return f"{' or '.join(plugin.title for plugin in plugins)} ({plugins[0].origin})"


def _innermost(frames: traceback.StackSummary) -> tuple[int, list[Plugin]] | None:
    from dynaweb.config.keys import OWN, source_paths
    from dynaweb.plugin.registry import current

    others = [(plugin, source_paths(plugin)) for plugin in current().offers.values() if plugin.origin.package != OWN]
    for at in range(len(frames) - 1, -1, -1):
        file = Path(frames[at].filename)
        within = [plugin for plugin, paths in others if any(one == file or one in file.parents for one in paths)]
        if within:
            return at, [plugin for plugin in within if _is_target(plugin, file)] or within
    return None


def _is_target(plugin: Plugin, file: Path) -> bool:
    """Whether a file is the module of a plugin's class."""
    module = sys.modules.get(plugin.spec.target.partition(":")[0])
    return getattr(module, "__file__", None) == str(file)


def file_error(error: BaseException) -> FileError | None:
    """An error about a file or folder that no command foresaw: which path, why, and what to do. None for others."""
    if not isinstance(error, OSError):
        return None
    if _nowhere():
        return FileError("the folder that the command was given in is gone; change to another one with cd")
    if error.errno in _LIMITS:
        return FileError(_LIMITS[error.errno])
    path = error.filename2 if error.filename2 is not None else error.filename
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return FileError(_sentence(path, error)) if isinstance(path, str) and path else None


def _sentence(path: str, error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{_denied(path)}: {error.strerror}; get the right to it (chmod, chown), or {_OTHER}"
    if error.errno in _WHY:
        what, advice = _WHY[error.errno]
        path = path if len(path) <= _LETTERS else f"{path[:_LETTERS]}..."
        return f"{path} {what}; {advice}"
    return f"{path} cannot be used: {error.strerror}; {_OTHER}, or see with --debug what was tried"


def _denied(path: str) -> str:
    """What of a path this user may not do."""
    if not os.path.lexists(path):
        parent = Path(path).parent
        while not os.path.lexists(parent) and parent != parent.parent:
            parent = parent.parent
        verb = "written" if _may(parent, os.X_OK) else "entered"
        return f"{path} cannot be reached or made, because {parent} cannot be {verb}"
    if not _may(path, os.R_OK):
        return f"{path} cannot be read"
    return f"{path} cannot be {'changed' if _may(path, os.W_OK) else 'written'}"


def _may(path: str | Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _nowhere() -> bool:
    """Whether the working directory has been deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
