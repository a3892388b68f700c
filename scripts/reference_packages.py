"""Make the virtual environments of the packages that tests and benchmarks compare the web layer with.

    python scripts/reference_packages.py [FOLDER]

Their pins clash with each other and with this project, so each lives in an environment of its own under FOLDER
(default: `.references` in the repository), and none of them is ever imported by the project. Tests that need one are
skipped, with this command as the reason, where it is missing. `DYNAWEB_REFERENCES` names another folder.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

DEFAULT = Path(__file__).resolve().parents[1] / ".references"
PACKAGES = {
    "webarena": (("libwebarena==0.0.5",),),
    # The pages of MiniWoB++ alone; its own dependencies are not needed to serve them.
    "browsergym": (("browsergym-core==0.14.3", "browsergym-miniwob==0.14.3"), ("--no-deps", "miniwob==1.1.0")),
}


def make(folder: Path, name: str) -> None:
    """Make one environment, unless it is complete already."""
    home = folder / name
    done = home / ".complete"
    if done.exists():
        sys.stderr.write(f"{name}: {home} is there already\n")
        return
    venv.create(home, with_pip=True, clear=True)
    for arguments in PACKAGES[name]:
        command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments]
        subprocess.run(command, check=True)
    done.touch()
    sys.stderr.write(f"{name}: made {home}\n")


def main() -> None:
    """Make all of them."""
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else DEFAULT
    for name in PACKAGES:
        make(folder, name)


if __name__ == "__main__":
    main()
