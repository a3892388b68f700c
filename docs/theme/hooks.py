"""What mkdocs.yml cannot say: the repository's address, files outside of docs/ that pages link to, and tutorials.

A link such as `../examples/browsergym_agent.py` leads to the file on GitHub. On the site it leads to a page that shows
the file, so that the site is whole without a network. Such pages lie under `repository/`.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
INSIDE = "repository"
"""Where the site shows files of the repository."""
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Files of the repository that the navigation names."""
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(?=[)#])")
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".json": "json", ".tex": "latex", ".yml": "yaml"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the addresses from pyproject.toml, and the tutorials from their folder."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    if "Repository" in urls:
        config.repo_url = urls["Repository"]
        config.repo_name = "/".join(urls["Repository"].rstrip("/").split("/")[-2:])
        config.edit_uri = "edit/main/docs/"
    config.site_url = config.site_url or urls.get("Documentation", "")
    folder = Path(config.docs_dir) / "tutorials"
    tutorials = sorted(path for path in folder.glob("*") if path.suffix in (".ipynb", ".md")) if folder.is_dir() else []
    if tutorials and config.nav:
        (start,) = (entry["Start"] for entry in config.nav if "Start" in entry)
        start.insert(1, {"Tutorials": [f"tutorials/{path.name}" for path in tutorials]})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each file of the repository that a page, or such a file, links to."""
    waiting = [*ALWAYS, *(target for file in files.documentation_pages() for target in _outside(file))]
    known = set[str]()
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        known.add(path)
        file = File.generated(config, _uri(path), content=_shown(path))
        files.append(file)
        waiting += _outside(file)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ to the pages that show what they lead to."""
    here = posixpath.dirname(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        uri = _uri(_path(page.file.src_uri, match[1]))
        return posixpath.relpath(uri, here or ".") if files.get_file_from_path(uri) else match[1]

    return LINK.sub(led, markdown)


def _outside(file: File) -> Iterator[str]:
    """Paths in the repository, outside of docs/, that a page links to."""
    if not file.src_uri.endswith(".md"):
        return
    for target in LINK.findall(file.content_string):
        path = _path(file.src_uri, target)
        if not path.startswith(("docs/", "../")) and (ROOT / path).exists():
            yield path


def _path(uri: str, target: str) -> str:
    """The path in the repository of what a page links to. Links of shown files are those of the file itself."""
    origin = uri.removeprefix(f"{INSIDE}/") if uri.startswith(f"{INSIDE}/") else f"docs/{uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))


def _uri(path: str) -> str:
    """Where the site has a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{INSIDE}/{path}/index.md"
    return f"{INSIDE}/{path}" if path.endswith(".md") else f"{INSIDE}/{path}.md"


def _shown(path: str) -> str:
    """The page about a file or folder of the repository."""
    place = ROOT / path
    if place.is_dir():
        names = sorted(one.name for one in place.iterdir() if one.suffix in (*LANGUAGES, ".md") or one.is_dir())
        rows = "\n".join(f"- [`{name}`]({name})" for name in names if not name.startswith((".", "_")))
        return f"# `{path}`\n\nA folder of the repository.\n\n{rows}\n"
    if place.suffix == ".md":
        # What a page says now comes before what has changed.
        top = "---\nsearch: {boost: 0.2}\n---\n\n" if path == "CHANGELOG.md" else ""
        return top + place.read_text(encoding="utf-8")
    if place.suffix not in LANGUAGES:
        raise PluginError(f"a page links to {path}: files that end with {place.suffix!r} cannot be shown on the site")
    text = place.read_text(encoding="utf-8")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    # What it says is found on the pages about it.
    top = "---\nsearch: {exclude: true}\n---\n\n"
    return f"{top}# `{path}`\n\nA file of the repository.\n\n{fence}{LANGUAGES[place.suffix]}\n{text}{fence}\n"
