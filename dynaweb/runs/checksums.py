"""Checksums of records: a finished run keeps those of its records in one file, and documents may carry their own.

    total = seal(folder)          writes checksums.json; `status.json` keeps its sum, so that it cannot go missing
    check_records(folder)         raises `CheckpointError` that names what has changed, is gone, or was added since
    check_store(path)             the same for a file of trajectories that is read alone

What is read of a finished run is thus what the run wrote, or an error. A run that goes on has no checksums, and one of
an earlier version of dynaweb had none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dynaweb.config.files import RESTORE, parse_json, read_json, understood
from dynaweb.errors import CheckpointError
from dynaweb.masking import masked_data
from dynaweb.runs.atomic import write_json

CHECKSUMS, STATUS = "checksums.json", "status.json"
SUM = "sum"
"""Key of a document's own checksum; in `status.json`, of that of `checksums.json`."""
RECORDS = (
    *("recipe.json", "recipe.toml", "plugins.json", "versions.json", "seeds.json", "command.json"),
    *("metrics.jsonl", "summary.json", "results.json", "judges.json", "world-model.json"),
    "trajectories/*.jsonl.gz",
)
"""What a run records, as patterns below its folder. Weights are files of the stage cache, which sums them itself."""
TRAJECTORIES = "trajectories"


def file_sum(path: Path) -> str:
    """The sha256 of a file, in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def with_sum(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document without its secrets, with its own checksum under `SUM`. It sums values, however they are laid out."""
    shown: dict[str, Any] = masked_data(document)  # as it will be written
    return {**shown, SUM: _sum_of(shown)}


def fits_sum(document: Mapping[str, Any]) -> bool:
    """Whether a document holds the values that `with_sum` has summed; one without a sum does not."""
    return document.get(SUM) == _sum_of(document)


def read_summed(path: Path, keys: Collection[str], *, advice: str = RESTORE) -> dict[str, Any]:
    """A document that `with_sum` has summed; of an earlier version of dynaweb it has none, and then only these keys.

    Raises `CheckpointError` for any other, and for one that cannot be read.
    """
    document = read_json(path, dict, advice=advice)
    with understood(path, advice=advice):
        is_sound = fits_sum(document) if SUM in document else document.keys() <= set(keys)
    if not is_sound:
        raise CheckpointError(f"{path} is damaged (its checksum does not fit); {advice}")
    return document


def seal(folder: Path) -> str:
    """Write the checksums of a run's records; returns the sum of these."""
    document = with_sum({"sha256": {name: file_sum(folder / name) for name in _records(folder)}})
    write_json(folder / CHECKSUMS, document)
    return str(document[SUM])


def check_records(folder: Path, below: str = "") -> None:
    """Raise `CheckpointError` unless the records of a run are those that it has finished with.

    A folder without checksums passes, unless its status tells that there were some. `below` names the records that are
    read: one of them, or a folder.
    """
    try:
        with understood(folder / CHECKSUMS):
            problems = damaged_records(folder, below)
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read ({error.strerror}); get the right to it") from error
    if problems:
        raise CheckpointError(
            f"{folder} is damaged ({', '.join(problems)} since the run ended), so its numbers are not to be trusted; "
            f"{RESTORE}, or make the run again"
        )


def check_store(path: Path) -> None:
    """`check_records` for one store of trajectories, wherever it lies: where that is a run, only for this store."""
    path = path.absolute()
    if path.parent.name == TRAJECTORIES:
        check_records(path.parent.parent, f"{TRAJECTORIES}/{path.name}")


def damaged_records(folder: Path, below: str = "") -> list[str]:
    """What is wrong with the records of a run, in words such as `metrics.jsonl has changed`; `below` as above."""
    status = read_json(folder / STATUS, dict) if (folder / STATUS).exists() else {}
    if not (folder / CHECKSUMS).exists():
        return [f"{CHECKSUMS} is gone"] if SUM in status else []
    document = read_json(folder / CHECKSUMS, dict)
    if not fits_sum(document):
        return [f"{CHECKSUMS} has changed"]
    # A run that goes on says so before its sums go, and its end has sums before it says so.
    if status.get("status") not in ("done", "running") or status.get(SUM, document[SUM]) != document[SUM]:
        return [f"{STATUS} has changed"]
    sums = {name: value for name, value in document["sha256"].items() if name.startswith(below)}
    names = [name for name in _records(folder) if name.startswith(below)]
    problems = [f"{name} is gone" for name in sums if name not in names]
    problems += [f"{name} was added" for name in names if name not in sums]
    both = (name for name in names if name in sums)
    return problems + [f"{name} has changed" for name in both if file_sum(folder / name) != sums[name]]


def _records(folder: Path) -> list[str]:
    files = (path for pattern in RECORDS for path in sorted(folder.glob(pattern)))
    return [path.relative_to(folder).as_posix() for path in files if not path.name.startswith(".")]


def _sum_of(document: Mapping[str, Any]) -> str:
    # As it is when it has been written and read: keys are text, tuples are lists.
    values = parse_json(json.dumps({key: value for key, value in document.items() if key != SUM}), dict)
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
