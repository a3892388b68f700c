"""The command line: a thin layer over the Python API.

stdout is data, stderr is progress. Exit codes: 0 done, 1 the run failed, 2 usage or configuration, 3 a plugin or
dependency is missing, 130 interrupted with state saved. The modules import heavy code inside commands only, so that
`--help` and listings answer at once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. `arguments` default to those of the process."""
    # Imports make many objects that live for ever; looking through them again and again takes a tenth of the start-up.
    gc.set_threshold(50_000)
    from dynaweb.cli.process import prepare

    prepare()
    from dynaweb.cli.app import tree

    words = list(arguments) if arguments is not None else sys.argv[1:]
    # Options that stand before the command are flags, so the first other word is the command.
    tree(next((word for word in words if not word.startswith("-")), ""))(args=words, prog_name="dynaweb")
