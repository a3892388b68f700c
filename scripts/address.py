"""Writes where the repository is, wherever the project says it: pyproject.toml and CITATION.cff.

    python scripts/address.py https://github.com/OWNER/dynaweb                     # pages: https://OWNER.github.io/dynaweb/
    python scripts/address.py https://git.example/team/dynaweb --docs https://docs.example/dynaweb/

The documentation site reads it from pyproject.toml, and a release from another address is refused
(`scripts/check_release.py`). README needs none: its links and the badge of CI are relative.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
TABLE = re.compile(r"\[project\.urls\]\n(?:[^\[\n][^\n]*\n)*")
PAPER = "https://arxiv.org/abs/2601.22149"


def urls(address: str, docs: str) -> dict[str, str]:
    """The table [project.urls] for a repository."""
    return {
        "Homepage": address,
        "Documentation": docs,
        "Repository": address,
        "Issues": f"{address}/issues",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
        "Paper": PAPER,
    }


def with_urls(pyproject: str, table: dict[str, str]) -> str:
    """pyproject.toml with these addresses. Raises `ValueError` where it has no such table."""
    if not TABLE.search(pyproject):
        raise ValueError("pyproject.toml has no table [project.urls]")
    lines = "".join(f'{name} = "{url}"\n' for name, url in table.items())
    return TABLE.sub(lambda _: f"[project.urls]\n{lines}", pyproject, count=1)


def with_citation(citation: str, address: str, docs: str) -> str:
    """CITATION.cff with the addresses of the software, which stand before its abstract."""
    kept = re.sub(r"^(?:repository-code|url): .*\n", "", citation, flags=re.M)
    return kept.replace("abstract:", f'repository-code: "{address}"\nurl: "{docs}"\nabstract:', 1)


def main() -> int:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of the repository, such as https://github.com/OWNER/dynaweb")
    parser.add_argument("--docs", default="", help="of the documentation site (default: GitHub's pages)")
    given = parser.parse_args()
    address = given.address.rstrip("/").removesuffix(".git")
    parts = urlsplit(address)
    owner, _, name = parts.path.strip("/").partition("/")
    if parts.scheme != "https" or not parts.netloc or not owner or not name:
        print(f"{given.address} is no address of a repository; valid is https://HOST/OWNER/NAME", file=sys.stderr)
        return 2
    docs = given.docs or (f"https://{owner.lower()}.github.io/{name}/" if parts.netloc == "github.com" else "")
    if not docs:
        print(f"{parts.netloc} is not github.com: say with --docs where the documentation is", file=sys.stderr)
        return 2
    for path, text in (
        ("pyproject.toml", with_urls((ROOT / "pyproject.toml").read_text(encoding="utf-8"), urls(address, docs))),
        ("CITATION.cff", with_citation((ROOT / "CITATION.cff").read_text(encoding="utf-8"), address, docs)),
    ):
        (ROOT / path).write_text(text, encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
