"""Checks what a release would publish: a wheel and a source archive of one version, whole, of the right repository.

    python -m build && python scripts/check_release.py dist --tag v0.2.0 --address https://github.com/OWNER/dynaweb

Needs no package. `tests/packaging` looks further into the wheel; this is looked at once more before it is public.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

NEEDED = (
    "dynaweb/train.py",
    "dynaweb/py.typed",
    "dynaweb/recipes/dynaweb.toml",
    "dynaweb/assets/tiny/model.safetensors",
    "dynaweb/assets/example.tar.xz",
)
"""Files that no wheel may lack: the loop, the mark that it is typed, the default recipe, the weights, the example."""
LARGEST = 100 * 2**20
"""Bytes that PyPI takes in one file."""


def trouble(folder: Path, tag: str, address: str) -> Iterator[str]:
    """A line for everything that speaks against publishing."""
    version = tag.removeprefix("v")
    wheels, archives = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(archives) != 1:
        yield f"{folder} holds {len(wheels)} wheels and {len(archives)} source archives; valid is one of each"
        return
    for path in (wheels[0], archives[0]):
        if not path.name.startswith(f"dynaweb-{version}"):
            yield f"{path.name} is not of the version {version} that the tag {tag} names"
        if path.stat().st_size > LARGEST:
            yield f"{path.name} has {path.stat().st_size >> 20} MiB; PyPI takes {LARGEST >> 20}"
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        yield from (f"{wheels[0].name} lacks {name}" for name in NEEDED if name not in names)
        strange = sorted({name.split("/")[0] for name in names if not name.startswith("dynaweb")})
        if strange:
            yield f"{wheels[0].name} holds top levels that are not ours: {', '.join(strange)}"
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = Parser().parsestr(wheel.read(metadata).decode())
        urls = dict(one.split(", ", 1) for one in about.get_all("Project-URL", []))
        if urls.get("Repository", "").removesuffix(".git") != address.removesuffix(".git"):
            given = urls.get("Repository", "no address")
            yield f"[project.urls] names {given}, this is {address}; run: python scripts/address.py {address}"
    with tarfile.open(archives[0]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
        wanted = ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "constraints.txt", "tests", "docs")
        yield from (
            f"{archives[0].name} lacks {name}" for name in wanted if name not in held and not _below(name, held)
        )


def _below(folder: str, names: set[str]) -> bool:
    return any(name.startswith(f"{folder}/") for name in names)


def main() -> int:
    """Print what is wrong; 1 where anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tag", required=True, help="the tag of the release, such as v0.2.0")
    parser.add_argument("--address", required=True, help="the address of the repository that publishes")
    given = parser.parse_args()
    found = list(trouble(given.folder, given.tag, given.address))
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    print(f"{given.folder}: {'must not be published' if found else 'can be published'} as {given.tag}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
