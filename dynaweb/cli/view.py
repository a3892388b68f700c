"""`dynaweb view` and `dynaweb report`: runs and their reports, while they go on and afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynaweb.cli import options as o

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, that of a matrix, or `example`.")]
Runs = Annotated[
    Path, typer.Argument(metavar="RUNS", help="A folder of runs and matrices, a run, a matrix, or `example`.")
]
All = Annotated[bool, typer.Option("--all", help="Every trajectory in the viewer, not a part of them.")]
Each = Annotated[int, typer.Option("--each", min=1, help="Trajectories of each arm and phase in the viewer.")]
EACH = 100


def view(
    runs: Runs = Path("runs"),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on loopback; 0 = a free one.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FOLDER", help="Write a static site into a folder instead.")
    ] = None,
    debug: o.Debug = False,
) -> None:
    """Look at runs in the browser, on this machine alone: list, compare, read every step. Ctrl-C ends it.

    Pages follow runs that go on. With --export they are written as a site that needs no server. `dynaweb view example`
    shows a finished run that comes with the package.
    """
    from dynaweb.runs.example import run_or_example

    runs = run_or_example(runs)
    if export is not None:
        _export(runs, export, open_browser)
        return
    from dynaweb.serve.reports import server_for

    server = server_for(runs, port=port)
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    typer.echo(address)
    if open_browser:
        import threading
        import webbrowser

        threading.Timer(0.2, webbrowser.open, [address]).start()
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
    finally:
        server.server_close()


def _export(runs: Path, folder: Path, open_browser: bool) -> None:
    from dynaweb.serve.export import export

    first = export(runs, folder, progress=lambda page: typer.echo(f"writing {page}", err=True))
    typer.echo(str(first))
    if open_browser:
        import webbrowser

        webbrowser.open(first.resolve().as_uri())


def report(run: Run, each: Each = EACH, every: All = False, as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Write report.html of a run or a matrix anew, with more trajectories if wished, and print the closing table."""
    from dynaweb.cli.output import emit
    from dynaweb.report import build_report, closing_json, closing_text, gather
    from dynaweb.runs.example import run_or_example

    run = run_or_example(run)
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
