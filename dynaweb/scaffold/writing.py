"""From a kind and a name to the files of a package."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from dynaweb.errors import ConfigError, hint

if TYPE_CHECKING:
    from dynaweb.hookspecs import Kind

TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class KindOfPlugin:
    """What differs between the kinds.

    `kind` is the hooks' word, `suffix` ends class names, `short` is in package names, `file` is the module.
    """

    title: str
    kind: Kind
    suffix: str
    short: str
    file: str
    summary: str
    flags: str


KINDS: Mapping[str, KindOfPlugin] = {
    "world-model": KindOfPlugin(
        "World model", "wm", "WorldModel", "wm", "model", "a page about what was clicked", "--wm {name}"
    ),
    "optimizer": KindOfPlugin(
        "Policy optimizer", "opt", "Optimizer", "opt", "optimizer", "REINFORCE with a group mean", "--opt {name}"
    ),
    "reward": KindOfPlugin(
        "Reward judge", "reward", "Judge", "rm", "judge", "words of the goal on the last page", "--reward {name}"
    ),
    "env": KindOfPlugin(
        "Environment", "env", "Environment", "env", "env", "lamps to switch on", "--env {name} --reward checker"
    ),
    "observer": KindOfPlugin(
        "Observer", "observer", "Observer", "obs", "observer", "numbers of updates as CSV", "--observe {name}"
    ),
    "engine": KindOfPlugin(
        "Engine",
        "engine",
        "Engine",
        "engine",
        "engine",
        "another temperature for every request",
        "--set policy.engine.name={name}",
    ),
    "prompt": KindOfPlugin(
        "Prompt format",
        "format",
        "Format",
        "format",
        "prompt",
        "a plan, then one action",
        "--model HuggingFaceTB/SmolLM2-135M-Instruct --set model.format={name}",
    ),
}


def new_plugin(kind: str, name: str, folder: Path | None = None) -> list[Path]:
    """Write a package into `folder` (default: a new one here, named like the package) and return its files.

    `kind` is one of `KINDS`, or its short word as in a recipe (`wm`, `opt`). Raises `ConfigError` for an unknown kind,
    a name that is none or that a plugin of the kind has already, and a folder that is there and not empty.
    """
    kind = full_kind(kind)
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} is no name of a plugin: use lower-case letters, digits and '-', such as my-model")
    about = KINDS[kind]
    _refuse_taken(about, name)
    package = f"dynaweb-{about.short}-{name}"
    target = folder if folder is not None else Path(package)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already and not empty; choose another folder with --out")
    values = _values(about, name, package)
    written = []
    for path, source in _files(kind, about, values["module"]):
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(source.read_text(encoding="utf-8")).substitute(values), encoding="utf-8")
        written.append(file)
    return written


def full_kind(kind: str) -> str:
    """The one of `KINDS` that is meant; recipes have short words for two. Raises `ConfigError` for any other."""
    name_of_kind = next((name for name, about in KINDS.items() if kind in (name, about.kind)), None)
    if name_of_kind is None:
        raise ConfigError(f"no kind of plugin is called {kind!r}; {hint(kind, KINDS)}")
    return name_of_kind


def _refuse_taken(about: KindOfPlugin, name: str) -> None:
    """Two plugins of one name are both refused when they are loaded; better one is not written."""
    from dynaweb.plugin.registry import KIND_WORDS, current

    taken = [one for one in current().statuses() if (one.kind, one.name) == (about.kind, name)]
    if taken:
        raise ConfigError(
            f"{KIND_WORDS[about.kind]} {name!r} is there already, in {taken[0].origin}, and two plugins of one name "
            f"are both refused; choose another name, such as my-{name}"
        )


def _class_name(about: KindOfPlugin, name: str) -> str:
    """`MyJudge` for `my-judge`, not `MyJudgeJudge`: words at the end that the suffix says (again) are left out."""
    words = [part.capitalize() for part in name.split("-")]
    suffix = re.findall(r"[A-Z][a-z]+", about.suffix)
    overlap = next((size for size in range(len(suffix), 0, -1) if words[-size:] == suffix[:size]), 0)
    overlap = overlap or int(len(words) > 1 and words[-1] == about.short.capitalize())
    return "".join([*words[: len(words) - overlap], about.suffix])


def _values(about: KindOfPlugin, name: str, package: str) -> dict[str, str]:
    return {
        "name": name,
        "package": package,
        "module": package.replace("-", "_"),
        "klass": _class_name(about, name),
        "title": about.title,
        "file": about.file,
        "summary": about.summary,
        "flags": about.flags.format(name=name),
    }


def _files(kind: str, about: KindOfPlugin, module: str) -> Iterator[tuple[str, Path]]:
    """Where each template goes."""
    common, own = TEMPLATES / "common", TEMPLATES / kind
    yield "pyproject.toml", common / "pyproject.toml.tmpl"
    yield "README.md", common / "README.md.tmpl"
    yield ".gitignore", common / "gitignore.tmpl"
    yield f"{module}/__init__.py", own / "init.py.tmpl"
    yield f"{module}/{about.file}.py", own / "main.py.tmpl"
    yield f"{module}/py.typed", common / "py.typed.tmpl"
    yield "tests/conftest.py", common / "conftest.py.tmpl"
    yield "tests/test_plugin.py", own / "test.py.tmpl"
