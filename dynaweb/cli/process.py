"""How the process behaves: logging on stderr, signals, and one clear message for an error."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from dynaweb.errors import EXIT_FAILED, EXIT_INTERRUPTED, DynawebError

DEBUG = "dynaweb.debug"
ENV_DEBUG = "DYNAWEB_DEBUG"


class Group(TyperGroup):
    """The root command: what goes wrong in any command becomes one message on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except DynawebError as error:
            raise self._exit(ctx, f"error: {error}", error.exit_code) from error
        except KeyboardInterrupt as error:
            raise self._exit(ctx, "interrupted", EXIT_INTERRUPTED) from error
        except BrokenPipeError:
            # The reader of our output has gone, as in `dynaweb tasks list | head`. Python would complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_FAILED) from None
        except typer.Exit:  # as after `--help`, which has to be quick
            raise
        except Exception as error:
            from dynaweb.cli.blame import plugin_fault
            from dynaweb.runs.space import storage_error

            full = storage_error(error, Path.cwd())
            if full is None:
                fault = plugin_fault(error)
                if fault:
                    raise self._exit(ctx, fault, EXIT_FAILED) from error
                raise
            raise self._exit(
                ctx, f"error: {full}; give the command again when it can be written to", EXIT_FAILED
            ) from error

    def _exit(self, ctx: Any, message: str, code: int) -> typer.Exit:
        if ctx.meta.get(DEBUG) or os.environ.get(ENV_DEBUG, "") not in ("", "0"):
            import traceback

            traceback.print_exc()
        typer.echo(message, err=True)
        return typer.Exit(code)


def prepare() -> None:
    """Set up logging, signals and imports of a command-line process."""
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
