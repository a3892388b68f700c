"""Run the tutorials and the notebook that `dynaweb init` writes: python scripts/check_tutorials.py [NAME...]

Each notebook of `docs/tutorials/` runs from its first cell to its last in a folder of its own, with one cache for all,
in an environment that has the wheel of dynaweb, and the dependencies of the environment that runs this script (nbclient
and ipykernel among them). A cell that fails ends it, commands behind `!` and `%pip` included. Notebooks are kept
without outputs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from check_plugins import ROOT, Place, build

TUTORIALS = ROOT / "docs" / "tutorials"
SECONDS = 1800
"""Most that one cell may take."""
STRICT = """
import subprocess
import sys

def _system(command):
    command = get_ipython().var_expand(command, depth=1)
    done = subprocess.run(["bash", "-c", command], text=True, capture_output=True)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    if done.returncode:
        raise RuntimeError(f"{command}: exit code {done.returncode}")

get_ipython().system = _system
"""
"""Jupyter goes on after a command that failed; a check must not."""


def problems(path: Path) -> list[str]:
    """What is wrong with a notebook as a file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = notebook["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    wrong = ["it has outputs; clear them" for cell in code if cell["outputs"] or cell["execution_count"] is not None]
    if len({cell["id"] for cell in cells}) != len(cells):
        wrong.append("two cells have the same id")
    if not cells or not "".join(cells[0]["source"]).startswith("# "):
        wrong.append("it does not begin with a title")
    return [f"{path.name}: {words}" for words in dict.fromkeys(wrong)]


def kernel(place: Place) -> None:
    """Make a kernel of the environment known to Jupyter."""
    folder = place.folder / "jupyter" / "kernels" / "tutorial"
    folder.mkdir(parents=True)
    python = str(place.bin / "python")
    spec = {
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "tutorial",
        "language": "python",
        "env": dict(place.env),
    }
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    os.environ["JUPYTER_PATH"] = str(place.folder / "jupyter")


def run(path: Path, folder: Path) -> None:
    """Run a notebook in a folder; ends the script with the cell that failed and what it printed."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    began = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(STRICT))
    client = NotebookClient(
        notebook, timeout=SECONDS, kernel_name="tutorial", resources={"metadata": {"path": str(folder)}}
    )
    try:
        client.execute()
    except CellExecutionError as error:
        printed = [
            output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output
        ]
        sys.exit(f"{path.name}: {error}\n{''.join(printed)[-4000:]}")
    print(f"{path.name}: {time.monotonic() - began:.0f} s", flush=True)


def main(names: Sequence[str]) -> None:
    """Check the files, then run those that are named, or all."""
    paths = sorted(TUTORIALS.glob("*.ipynb"))
    if wrong := [words for path in paths for words in problems(path)]:
        sys.exit("\n".join(wrong))
    if unknown := [name for name in names if name != "init" and name not in [path.stem for path in paths]]:
        sys.exit(f"there is no tutorial {unknown[0]!r}; there are {', '.join(path.stem for path in paths)}, init")
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(Path(scratch), build(Path(scratch)))
        kernel(place)
        for path in paths:
            if not names or path.stem in names:
                (folder := place.folder / path.stem).mkdir()
                run(path, folder)
        if not names or "init" in names:
            place.python("dynaweb", "init", "project", "--recipe", "smoke", cwd=place.folder)
            with (place.folder / "project" / "project.toml").open("a", encoding="utf-8") as recipe:
                recipe.write('\n[env.task_settings]\ndriver = "static"\n')
            run(place.folder / "project" / "project.ipynb", place.folder / "project")


if __name__ == "__main__":
    main(sys.argv[1:])
