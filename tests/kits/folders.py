"""Where things of the repository lie, for tests in any folder."""

import os
import sys
import tomllib
from pathlib import Path

KITS = Path(__file__).parent
TESTS = KITS.parent
ROOT = TESTS.parent


def as_installed(package: Path, folder: Path) -> None:
    """Have this process, and those that it starts, find a plugin's package as if it was installed: it is on the path,
    and its entry points are written to `folder`."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    (info := folder / f"{name}-{version}.dist-info").mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    points = "\n".join(f"{key} = {module}" for key, module in project["entry-points"]["dynaweb"].items())
    (info / "entry_points.txt").write_text(f"[dynaweb]\n{points}\n")
    paths = [str(package), str(folder)]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH", "")]))
