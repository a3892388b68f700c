"""Task files: WebArena's format and WebArena-Verified's, one list or one file a task."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.errors import ConfigError, MissingError, hint
from dynaweb.runs import sidecar
from dynaweb_env_webarena.images import mistake_in

if TYPE_CHECKING:
    from dynaweb_env_webarena import WebarenaConfig

VERIFIED = "webarena-verified"
_FILES = {
    "raw": ("libwebarena", "test.raw.json"),
    "lite": ("browsergym-webarenalite", "test_webarena_lite.raw.json"),
    "verified": (VERIFIED, "webarena-verified.json"),
    "hard": (VERIFIED, "webarena-verified.json"),
}
_HARD = "webarena-verified-hard.json"
_NEEDED = ("task_id", "sites", "intent", "eval")
_PARTS: Mapping[str, tuple[str, type, str]] = {
    "string_match": ("reference_answers", dict, "an object"),
    "url_match": ("reference_url", str, "an address"),
    "program_html": ("program_html", list, "a list of objects"),
    "page_image_query": ("page_image_query", list, "a list of objects"),
}
"""Types of evaluation: what each reads of `eval`, and in which shape."""

Raw = Mapping[str, Any]


def raw_tasks(config: WebarenaConfig, split: str) -> list[Raw]:
    """The tasks of a split as their file has them. Raises `ConfigError` or `MissingError`."""
    if split in ("train", "pretrain"):
        if not config.train:
            raise ConfigError(
                f"env webarena has no tasks of split {split!r}: set env.train to a task file (WebArena's own tasks are "
                "for evaluation)"
            )
        return read(Path(config.train))
    if split == "validation" and config.validation:
        return read(Path(config.validation))
    if config.path:
        return read(Path(config.path))
    tasks = read(packaged(*_FILES[config.set]))
    if config.set == "hard":
        wanted = set(json.loads(packaged(VERIFIED, _HARD).read_text(encoding="utf-8"))["task_ids"])
        tasks = [task for task in tasks if task["task_id"] in wanted]
    return tasks


def packaged(package: str, name: str) -> Path:
    """A data file of a package: installed here, or in an environment of its own. Raises `MissingError`."""
    try:
        listed = files(package) or []
    except PackageNotFoundError:
        listed = []
    for file in listed:
        if file.name == name:
            return Path(str(file.locate()))
    aside = next(iter(sorted((sidecar.root() / package).glob(f"lib*/**/{name}"))), None)
    if aside is None:
        raise MissingError(
            f"the tasks of {package} are not installed; run: dynaweb env install {package} (or set env.path to a file)"
        )
    return aside


def read(path: Path) -> list[Raw]:
    """The tasks of a list or a folder. Raises `ConfigError` that names the file and what is wrong with it."""
    names = sorted(path.glob("*.json"), key=_number) if path.is_dir() else [path]
    loaded: list[Any] = [_load(name) for name in names]
    tasks = loaded[0] if len(loaded) == 1 and isinstance(loaded[0], list) else loaded
    if not tasks:
        raise ConfigError(f"{path} holds no list of tasks")
    checked = [_checked(task, path) for task in tasks]
    twice = [task_id for task_id, count in Counter(str(task["task_id"]) for task in checked).items() if count > 1]
    if twice:
        raise ConfigError(f"{path} has several tasks of the id {twice[0]}; ids tell tasks apart, so give each its own")
    return checked


def kind_of(task: Raw) -> str:
    """The types of evaluation of a task, joined by `+`."""
    if is_verified(task):
        return str(
            next((part["expected"]["task_type"] for part in task["eval"] if "task_type" in part["expected"]), "-")
        )
    return "+".join(task["eval"].get("eval_types") or ()) or "-"


def is_verified(task: Raw) -> bool:
    """Whether a task is in the format of WebArena-Verified."""
    return isinstance(task["eval"], list)


def starts(task: Raw) -> str:
    """The start pages of a task, joined as WebArena does."""
    return " |AND| ".join(task["start_urls"]) if "start_urls" in task else str(task.get("start_url") or "")


def goal_images(task: Raw) -> list[str]:
    """The addresses or paths of the images that a goal comes with (VisualWebArena)."""
    image = task.get("image") or []
    return [image] if isinstance(image, str) else list(image)


def texts(value: Any) -> Iterable[str]:
    """Every text in a task."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the task file {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the task file {path} is no JSON: {error}") from None


def _checked(task: Any, path: Path) -> Raw:
    missing = [key for key in _NEEDED if not isinstance(task, dict) or key not in task]
    if missing:
        raise ConfigError(f"a task in {path} has no {', '.join(missing)}; it needs {', '.join(_NEEDED)} and start_url")
    wrong = next(filter(None, _mistakes(task)), "")
    if wrong:
        raise ConfigError(f"task {str(task['task_id'])[:40]} in {path}: {wrong}")
    return dict(task)


def _mistakes(task: Raw) -> Iterator[str]:
    """What is wrong with a task that has all it needs: '' for each thing that is right."""
    yield "" if _is_flat(task) else f"its values lie more than {_LEVELS} levels deep"
    yield "" if _is_texts(task["sites"]) else f"sites is a list of names, not {task['sites']!r:.60}"
    urls = task.get("start_urls", [task.get("start_url")])
    yield (
        ""
        if urls and _is_texts(urls) and all(urls)
        else "it has no start_url; write the address or __SITE__ where it begins"
    )
    image = task.get("image")
    yield (
        ""
        if not image or isinstance(image, str) or _is_texts(image)
        else f"image is a list of names, not {image!r:.60}"
    )
    evaluation = task["eval"]
    if is_verified(task):
        good = all(isinstance(part, Mapping) and isinstance(part.get("expected"), Mapping) for part in evaluation)
        yield "" if evaluation and good else "eval is a list of objects with `expected`, as webarena-verified has it"
    elif not isinstance(evaluation, Mapping):
        yield f"eval is an object with eval_types, not {evaluation!r:.60}"
    elif not _is_texts(evaluation.get("eval_types")):
        yield f"eval_types is a list of names ({', '.join(_PARTS)}), not {evaluation.get('eval_types')!r:.60}"
    else:
        for kind in evaluation["eval_types"]:
            yield "" if kind in _PARTS else f"there is no eval type {kind!r}; {hint(kind, _PARTS)}"
            key, shape, name = _PARTS.get(kind, ("", object, ""))
            part = evaluation.get(key)
            yield (
                "" if not part or isinstance(part, shape) else f"{kind} reads {key}, which is {name}, not {part!r:.60}"
            )
            yield mistake_in(part) if kind == "page_image_query" else ""


_LEVELS = 50


def _is_flat(value: Any, levels: int = _LEVELS) -> bool:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_flat(item, levels - 1) for item in below)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _number(path: Path) -> tuple[int, str]:
    return (int(path.stem) if path.stem.isdigit() else 0, path.name)
