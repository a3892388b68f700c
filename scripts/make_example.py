"""Make the run that `dynaweb view example` shows out of a finished one.

    dynaweb run --thorough --out runs/thorough
    python scripts/make_example.py runs/thorough

All records stay as they are, with two exceptions: of rollouts in dreams the first group of every fifth update is kept,
for size, and the address of the run folder on this machine becomes its name. Weights stay out. The result is
`dynaweb/assets/example.tar.xz`.
"""

from __future__ import annotations

import argparse
import io
import lzma
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from dynaweb.config.files import read_json
from dynaweb.data.store import TrajectoryStore
from dynaweb.report import build_report
from dynaweb.runs import write_json
from dynaweb.runs.checksums import RECORDS, STATUS, SUM, check_records, seal
from dynaweb.runs.example import ARCHIVE, EXAMPLE
from dynaweb.runs.names import DREAMS


def main() -> None:
    """Copy, thin, seal, pack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=ARCHIVE)
    parser.add_argument("--every", type=int, default=5, help="of the updates whose rollouts are kept")
    options = parser.parse_args()
    check_records(options.run)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / EXAMPLE
        for pattern in (*RECORDS, STATUS):
            for path in sorted(options.run.glob(pattern)):
                target = folder / path.relative_to(options.run)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        for path in (*folder.glob("*.json"), *folder.glob("*.jsonl")):
            path.write_text(path.read_text(encoding="utf-8").replace(str(options.run.resolve()), options.run.name))
        for path in sorted((folder / "trajectories").glob(f"{DREAMS}*.jsonl.gz")):
            thin(path, options.every)
        write_json(folder / STATUS, {**read_json(folder / STATUS, dict), SUM: seal(folder)})
        build_report(folder)
        (folder / "report.html").unlink()
        pack(folder, options.out)
    sys.stdout.write(f"{options.out}: {options.out.stat().st_size / 2**20:.1f} MiB\n")


def thin(path: Path, every: int) -> None:
    """Keep the first group of every so many updates."""
    kept, groups = [], dict[int, str]()
    for trajectory in TrajectoryStore(path):
        update = trajectory.facts.update or 0
        if update % every == 0 and groups.setdefault(update, trajectory.group) == trajectory.group:
            kept.append(trajectory)
    TrajectoryStore.write(path, kept)


def pack(folder: Path, out: Path) -> None:
    """A tar of the folder that is the same bytes for the same files. Stores are gzip, so little is left to compress."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder.parent).as_posix())
            entry.size, entry.mode = path.stat().st_size, 0o644
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(lzma.compress(buffer.getvalue(), preset=9))


if __name__ == "__main__":
    main()
