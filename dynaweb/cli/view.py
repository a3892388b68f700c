"""`dynaweb view` and `dynaweb report`: the report of a run, while it goes on and afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynaweb.cli import options as o

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or the folder of a matrix.")]
All = Annotated[bool, typer.Option("--all", help="Every trajectory in the viewer, not a part of them.")]
Each = Annotated[int, typer.Option("--each", min=1, help="Trajectories of each arm and phase in the viewer.")]
EACH = 100


def view(
    run: Run,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on loopback; 0 = a free one.")] = 0,
    each: Each = EACH,
    every: All = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    debug: o.Debug = False,
) -> None:
    """Serve the report of a run on this machine while the run goes on; Ctrl-C ends it."""
    import threading

    from dynaweb.serve.reports import server_for

    server = server_for(run, each=None if every else each, port=port)
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    typer.echo(address)
    if open_browser:
        import webbrowser

        threading.Timer(0.2, webbrowser.open, [address]).start()
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
    finally:
        server.server_close()


def report(run: Run, each: Each = EACH, every: All = False, as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Write report.html of a run or a matrix anew, with more trajectories if wished, and print the closing table."""
    from dynaweb.cli.output import emit
    from dynaweb.report import build_report, closing_json, closing_text, gather

    if (run / "matrix.json").exists():
        from dynaweb.cli.matrix import Shown, print_table
        from dynaweb.matrix import MatrixFolder

        o.load_plugins(None, warn=False)
        folder = MatrixFolder(run)
        print_table(folder.read_plan(), folder, Shown(to="json" if as_json else "text"))
        return
    data = gather(run, each=None if every else each)
    path = build_report(run, data=data)
    emit(closing_json(data), closing_text(data, report=path), as_json=as_json)
