"""WebVoyager's files: a JSON line for each task, and reference answers by site."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.config.files import read_json
from dynaweb.errors import ConfigError, InfrastructureError, MissingError
from dynaweb.runs.atomic import write_text
from dynaweb.runs.cache import default_root

if TYPE_CHECKING:
    from dynaweb_env_webvoyager import WebvoyagerConfig

DATA, ANSWERS = "WebVoyager_data.jsonl", "reference_answer.json"
_NEEDED = ("web_name", "id", "ques", "web")


def task_file(config: WebvoyagerConfig, split: str) -> Path:
    """The file with the tasks of a split. Raises `ConfigError` or `MissingError` that say what to set."""
    if split in ("train", "pretrain"):
        if not config.train:
            raise ConfigError(
                f"env webvoyager has no tasks of split {split!r}: set env.train to a task file (WebVoyager's own tasks "
                "are for evaluation)"
            )
        return Path(config.train)
    folder = Path(config.path) if config.path else default_root() / "webvoyager"
    if folder.is_file():
        return folder
    if not (folder / DATA).exists():
        if not config.download:
            raise MissingError(f"there is no {folder / DATA}; set env.path to its folder, or env.download = true")
        download(config.source, folder)
    return folder / DATA


def download(source: str, folder: Path) -> None:
    """Fetch both files. Raises `InfrastructureError`; nothing half-written stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ANSWERS, DATA):
        try:
            with urllib.request.urlopen(f"{source.rstrip('/')}/{name}", timeout=60) as answer:
                text = answer.read().decode("utf-8")
        except (OSError, ValueError) as error:
            raise InfrastructureError(f"{source}/{name} could not be fetched: {error}") from None
        write_text(folder / name, text)


def read(path: Path) -> list[Mapping[str, Any]]:
    """The tasks of a file. Raises `ConfigError` that names the line."""
    try:
        # Not `splitlines`, for which a separator that a question holds would end its line.
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"the task file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the task file {path} is not UTF-8 text: {error.reason}") from None
    return [_task(line, f"line {number} of {path}") for number, line in enumerate(lines, start=1) if line.strip()]


def answers(path: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Reference answers by task id, from the file beside the tasks; empty where there is none."""
    file = path.parent / ANSWERS
    if not file.exists():
        return {}
    sites = read_json(file, dict, error=ConfigError, advice="give WebVoyager's file of reference answers")
    try:
        return {
            f"{site}--{one['id']}": [one] for site, site_answers in sites.items() for one in site_answers["answers"]
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is not WebVoyager's file of reference answers: {error!r}") from None


def _task(line: str, where: str) -> Mapping[str, Any]:
    try:
        task = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON: {error}") from None
    missing = [key for key in _NEEDED if not isinstance(task, dict) or not isinstance(task.get(key), str)]
    if missing:
        raise ConfigError(f"{where} has no {', '.join(missing)}; a task has {', '.join(_NEEDED)}")
    return dict(task)
