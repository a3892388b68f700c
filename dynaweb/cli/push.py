"""`dynaweb push`: a run's trained policy on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynaweb.cli import options as o


def push(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    repo: Annotated[str, typer.Argument(metavar="REPO_ID", help="Model repository, as in me/web-agent.")],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="NAME", help="Which of its checkpoints; default: the trained policy.")
    ] = "",
    licence: Annotated[
        str, typer.Option("--licence", metavar="ID", help="Licence for the card, such as apache-2.0; default: none.")
    ] = "",
    private: Annotated[bool, typer.Option("--private", help="Make the repository private, if it is new.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the folder, print what would be sent.")] = False,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Send a run's trained policy to the Hugging Face hub, with a model card made from the run."""
    from dynaweb import api
    from dynaweb.cli.output import emit

    o.load_plugins(block)
    result = api.push(run, repo, checkpoint=checkpoint, licence=licence, private=private, dry_run=dry_run)
    emit(result, str(result), as_json=as_json)
    if not as_json and dry_run:
        typer.echo(f"\nThe card is {result.folder / 'README.md'}; edit it, and it is sent as it is then.", err=True)
