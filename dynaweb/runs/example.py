"""The finished run that comes with the package, to look at before anything was run: `dynaweb view example`."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
from pathlib import Path

from dynaweb.errors import MissingError
from dynaweb.runs.cache import default_root

EXAMPLE = "example"
"""What it is called where a run folder may be named."""
ARCHIVE = Path(__file__).parents[1] / "assets" / "example.tar.xz"


def run_or_example(path: Path) -> Path:
    """The folder itself; for the word `example`, where no folder is called so, the run that comes with the package."""
    return example_run() if path == Path(EXAMPLE) and not path.exists() else path


def example_run() -> Path:
    """The folder of the shipped run, unpacked into the cache when it is first asked for.

    Raises `MissingError` where the package was installed without it.
    """
    if not ARCHIVE.is_file():
        raise MissingError(f"{ARCHIVE} is missing, so there is no example to look at; install dynaweb anew")
    version = hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()[:12]
    folder = default_root() / EXAMPLE / version / EXAMPLE
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix="part-", dir=folder.parent))
    try:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(part, filter="data")
        try:
            (part / EXAMPLE).rename(folder)
        except OSError:
            # Another process was quicker.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder
