"""A static site of the pages over a folder of runs: works from a disk and from any web server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from dynaweb.errors import ConfigError, DynawebError
from dynaweb.runs.atomic import write_text, write_with
from dynaweb.serve.site import Site

MARK = ".dynaweb-site"
"""Names a folder that an earlier export has written, and that may be written again."""


def export(root: Path, out: Path, *, progress: Callable[[str], None] = lambda words: None) -> Path:
    """Write every page of `root` into the folder `out`, and return the first; `progress` hears of each.

    Pages of an earlier export are replaced, and those of runs that are gone removed. Pictures that trajectories show
    are copied. Damaged runs have a row in the list, and no page.

    Raises `ConfigError` for a folder with anything else in it, `CheckpointError` where `root` holds no run, or is a
    damaged one.
    """
    site = Site(root, live=False)
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARK).exists())):
        raise ConfigError(
            f"{out} is not empty and no site that was written before; choose another folder with --export"
        )
    if out.resolve().is_relative_to(root.resolve()) and any(
        out.resolve().is_relative_to(folder.resolve()) for folder in site.runs.values()
    ):
        raise ConfigError(f"{out} is inside a run; give --export another folder")
    before = _written(out)
    out.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    pictures: dict[str, None] = {}
    for address in site.addresses():
        if address.endswith(".html"):
            progress(address)
        try:
            answer = site.answer(f"/{quote(address)}")
        except (DynawebError, OSError) as error:
            # The list says that it is damaged; the others have their pages.
            progress(f"{address} is left out: {error}")
            continue
        if answer is None:  # a run that has gone meanwhile
            continue
        write_text(out / address, answer.text)
        names.append(address)
        # A block is `<run>/data/<store>/<number>.js`, and any part may be called `data`.
        run = "".join(f"{part}/" for part in address.split("/")[:-3])
        pictures |= dict.fromkeys(f"{run}{one}" for one in answer.pictures)
    for address in pictures:
        answer = site.answer(f"/{quote(address)}")
        if answer is None:
            progress(f"{address} is missing or damaged: its place on the pages says so")
            continue
        write_with(out / address, lambda temporary, data=answer.data: temporary.write_bytes(data))  # type: ignore[misc]
        names.append(address)
    write_text(out / MARK, "".join(f"{name}\n" for name in names), verbatim=True)
    for name in before - set(names):
        (out / name).unlink(missing_ok=True)
    return out / ("index.html" if site.is_list else "report.html")


def _written(out: Path) -> set[str]:
    """The files of an earlier export."""
    mark = out / MARK
    if not mark.exists():
        return set()
    names = mark.read_text(encoding="utf-8").splitlines()
    return {name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts}
