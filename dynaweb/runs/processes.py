"""Starting further Python processes of the same installation, and where they listen."""

from __future__ import annotations

import os
import socket
import sys

INSIDE = "DYNAWEB_IN_CLUSTER"
"""Environment variable of the processes that a cluster has placed (`dynaweb.commands.cluster`)."""


def placed() -> bool:
    """Whether a cluster has placed this process, so that it places no others."""
    return bool(os.environ.get(INSIDE))


def python_options() -> list[str]:
    """Options of Python for a process that imports what this one does.

    `-m` and `-c` put the working directory before everything that is installed: a file there that is called as a
    library would be imported in its place. The command `dynaweb` does not do that, nor do processes that it starts.
    """
    here = {"", ".", os.getcwd()}
    return [] if here & set(sys.path) else ["-P"]


def own_command(*arguments: str) -> list[str]:
    """`dynaweb` with these arguments, after the Python of this process."""
    return [*python_options(), "-m", "dynaweb", *arguments]


def free_port(host: str = "") -> int:
    """A port of `host`, an address of this machine (empty = all of them), that is free now."""
    with socket.create_server((host, 0)) as free:
        return int(free.getsockname()[1])
