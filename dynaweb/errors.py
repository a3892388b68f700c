"""One error type per boundary, each with the exit code that the command line gives it.

An error message says what was tried, what is valid, and what to do next. A bad rollout is data, not an
exception: parse errors, stale elements and refused deltas travel inside `Step.error` and `Prediction.error`.
"""

from __future__ import annotations

EXIT_OK = 0
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


class TrainingError(DynawebError):
    """Training cannot go on: repeated non-finite updates, or a batch that carries no agent token."""


class DivergedError(TrainingError):
    """Weights, or what a model computes with them, are not finite: there is nothing sound left to go on from."""


class Interrupted(DynawebError):
    """SIGINT or SIGTERM arrived; the state was saved and `--resume` goes on from it."""

    exit_code = EXIT_INTERRUPTED
