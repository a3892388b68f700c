"""How the process behaves: logging on stderr, signals, and one clear message for an error."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from dynaweb.cli.patience import tell_of_signals
from dynaweb.errors import EXIT_FAILED, EXIT_INTERRUPTED, DynawebError

DEBUG = "dynaweb.debug"
ENV_DEBUG = "DYNAWEB_DEBUG"


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
            if (told := _told(error)) is None:
                raise
            raise self._exit(ctx, told, EXIT_FAILED) from error

    def _exit(self, ctx: Any, message: str, code: int) -> typer.Exit:
        if ctx.meta.get(DEBUG) or os.environ.get(ENV_DEBUG, "") not in ("", "0"):
            import traceback

            traceback.print_exc()
        typer.echo(message, err=True)
        return typer.Exit(code)


def _told(error: Exception) -> str | None:
    """What to say of an error that no command foresaw: disks, plugins and files. None for a mistake of our own."""
    from dynaweb.cli.blame import plugin_fault
    from dynaweb.cli.refused import file_error
    from dynaweb.runs.space import storage_error

    if (full := storage_error(error)) is not None:
        return f"error: {full}; give the command again when it can be written to"
    if fault := plugin_fault(error):
        return fault
    refused = file_error(error)
    return None if refused is None else f"error: {refused}"


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
