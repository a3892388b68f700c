"""Tasks of the embedded sites: the registry of templates, drawing tasks, and WebArena's JSON format.

An id such as `shop/add-to-cart:test:30004:17` says all of a task: `make_task` makes the same one from it again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from itertools import chain, islice, zip_longest
from typing import Any
from zlib import crc32

from dynaweb.errors import ConfigError
from dynaweb.runs.seeding import derive
from dynaweb.types import Split, Task
from dynaweb.web.environment import FIRST_SEED, SEEDS_APART
from dynaweb_env_sites.base import Site
from dynaweb_env_sites.content import locale_of
from dynaweb_env_sites.goals import Do, Goal, Template
from dynaweb_env_sites.long_tasks import LONG
from dynaweb_env_sites.server import SITE_NAMES, load_sites

SITES_PER_SPLIT: Mapping[str, int] = {"pretrain": 400, "train": 8, "validation": 8, "test": 24}
VARIANTS = 10_000
"""Instances of a template that are told apart on one site (many have the same words)."""
TRIES = 80
"""Draws in a row that may be refused before a template counts as used up."""


@lru_cache(maxsize=1)
def sites() -> dict[str, Site[Any]]:
    """All embedded sites by name."""
    return load_sites()


@lru_cache(maxsize=1)
def registry() -> dict[str, Template]:
    """The usual templates by name, the sites taking turns."""
    return {name: template for name, template in templates().items() if template.site in SITE_NAMES}


@lru_cache(maxsize=32)
def templates(chosen: tuple[str, ...] = (), *, long: bool = False) -> dict[str, Template]:
    """The templates of some sites (default: of all) by name, the sites taking turns; `long`: those of long tasks."""
    groups = [
        [template for template in (LONG if long else site.templates) if template.site == name]
        for name, site in sites().items()
        if name in (chosen or sites())
    ]
    return {one.name: one for one in chain.from_iterable(zip_longest(*groups)) if one is not None}


def site_seeds(split: str, count: int = 0) -> range:
    """The site seeds of a split; `count` 0 means the default number of sites."""
    if split not in FIRST_SEED:
        raise ConfigError(f"There is no split {split!r}. Valid: {', '.join(FIRST_SEED)}.")
    first = FIRST_SEED[split]
    return range(first, first + (count or SITES_PER_SPLIT[split]))


def sites_tasks(
    split: str,
    count: int,
    seed: int,
    max_best_steps: int = 0,
    *,
    templates: Sequence[str] | None = None,
    site_seeds: Sequence[int] | None = None,
) -> list[Task]:
    """`count` tasks of a split, templates in rotation; the same arguments give the same tasks.

    Args:
        split: `pretrain`, `train`, `validation` or `test`.
        count: How many; words repeat only when a template has no new ones left.
        seed: Which tasks.
        max_best_steps: Only tasks whose plan is at most this long, the closing `stop` included; 0 = any.
        templates: Names to use; None = the usual ones. Each template draws the same tasks whatever the others are.
        site_seeds: Sites to use; None = the default sites of the split.

    Raises:
        ConfigError: An unknown split or template, or no template has a task that is short enough.
    """
    seeds = tuple(_default_seeds(split) if site_seeds is None else site_seeds)
    streams = [_stream(_template(name), split, seeds, seed, max_best_steps) for name in templates or registry()]
    tasks: list[Task] = []
    while streams and len(tasks) < count:
        drawn = [(stream, next(stream, None)) for stream in streams[: count - len(tasks)]]
        tasks += [task for _, task in drawn if task is not None]
        ended = [stream for stream, task in drawn if task is None]
        streams = [stream for stream in streams if stream not in ended]
    if len(tasks) < count:
        raise ConfigError(
            f"No task of the split {split!r} has at most {max_best_steps} best-case steps. "
            "Raise max_best_steps or allow more templates."
        )
    return tasks


def task_variants(
    task: Task, count: int, seed: int, *, site_seeds: Sequence[int], max_best_steps: int = 0
) -> list[Task]:
    """At most `count` tasks of the template of `task` with other words or on other sites of its split.

    Raises `ConfigError` for a task that is not one of the embedded sites.
    """
    stream = _stream(_template(task.template), task.split, tuple(site_seeds), derive(seed, task.id), max_best_steps)
    others = (one for one in stream if (one.intent, one.meta["site_seed"]) != (task.intent, task.meta.get("site_seed")))
    return list(islice(others, count))


def make_task(template: str, split: Split, site_seed: int, number: int) -> Task | None:
    """One task by the parts of its id; None when the template has none for this number."""
    chosen = _template(template)
    state = sites()[chosen.site].build(site_seed, split, locale_of(site_seed))
    goal = chosen.make(state, random.Random(derive(site_seed, "task", template, split, number)))
    return None if goal is None else _task(chosen, goal, split, site_seed, number)


def task_of(task_id: str) -> Task | None:
    """The task of an id; None when it is no id of these sites."""
    name, split, *numbers = ([*task_id.rsplit(":", 3), "", ""])[:4]
    if name not in _every() or split not in FIRST_SEED or not all(number.isdecimal() for number in numbers):
        return None
    site_seed, number = map(int, numbers)
    # Splits share no site, whatever an id says.
    if not 0 <= site_seed - FIRST_SEED[split] < SEEDS_APART or number >= VARIANTS:
        return None
    return make_task(name, split, site_seed, number)  # type: ignore[arg-type]  # checked above


def plan_of(task: Task) -> tuple[Do, ...]:
    """The scripted solution of a task; empty when it has none."""
    return tuple(Do(**step) for step in task.meta.get("plan", ()))


def to_webarena(task: Task) -> dict[str, Any]:
    """The task in WebArena's JSON format; what that has no field for is in `dynaweb`.

    Addresses of sites are written as placeholders (`__SHOP__`), as in WebArena's own files.
    """
    meta = dict(task.meta)
    return {
        "sites": list(task.sites),
        "task_id": crc32(task.id.encode()),
        "require_login": False,
        "storage_state": None,
        "start_url": _mark(task.start_url),
        "geolocation": None,
        "intent_template": meta.get("intent_template", task.intent).replace("{", "{{").replace("}", "}}"),
        "instantiation_dict": dict(meta.get("slots", {})),
        "intent": task.intent,
        "require_reset": True,
        "eval": _mark(dict(task.evaluation)),
        "intent_template_id": crc32(task.template.encode()),
        "dynaweb": {
            "id": task.id,
            "split": task.split,
            "template": task.template,
            "best_steps": task.best_steps,
            "meta": meta,
        },
    }


def _default_seeds(split: str) -> Sequence[int]:
    return site_seeds(split)


def _template(name: str) -> Template:
    known = _every().get(name)
    if known is None:
        raise ConfigError(f"There is no task template {name!r}. Valid: {', '.join(_every())}.")
    return known


def _every() -> dict[str, Template]:
    return templates() | templates(long=True)


def _stream(template: Template, split: str, seeds: Sequence[int], seed: int, max_best_steps: int) -> Iterator[Task]:
    """Tasks of one template, each id once. New words first; when they run out, used words again."""
    rng = random.Random(derive(seed, "tasks", split, template.name))
    ids: set[str] = set()
    words: set[tuple[int, str]] = set()
    new_words, refused = True, 0
    while refused < TRIES:
        site_seed, number = rng.choice(list(seeds)), rng.randrange(VARIANTS)
        task = make_task(template.name, split, site_seed, number)  # type: ignore[arg-type]
        fits = task is not None and (not max_best_steps or (task.best_steps or 0) <= max_best_steps)
        if task is None or not fits or task.id in ids or (new_words and (site_seed, task.intent) in words):
            refused += 1
            if refused == TRIES and new_words and ids:
                new_words, refused = False, 0
            continue
        refused = 0
        ids.add(task.id)
        words.add((site_seed, task.intent))
        yield task


def _task(template: Template, goal: Goal, split: Split, site_seed: int, number: int) -> Task:
    host = sites()[template.site].host
    meta = {
        "site_seed": site_seed,
        "split": split,
        "locale": locale_of(site_seed).code,
        "template": template.name,
        "kind": template.kind,
        "plan": [_plain(step) for step in goal.plan],
        **goal.meta,
    }
    return Task(
        id=f"{template.name}:{split}:{site_seed}:{number}",
        intent=goal.intent,
        start_url=f"http://{host}{goal.start_path}",
        sites=(template.site,),
        split=split,
        evaluation=goal.evaluation,
        template=template.name,
        best_steps=len(goal.plan),
        meta=meta,
    )


def _plain(step: Do) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(Do)}
    return {key: value for key, value in asdict(step).items() if value != defaults[key]}


def _mark(value: Any) -> Any:
    """Site addresses -> placeholders, anywhere in plain data."""
    return _replace(value, {f"http://{site.host}": f"__{name.upper()}__" for name, site in sites().items()})


def _replace(value: Any, table: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for old, new in table.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, Mapping):
        return {key: _replace(item, table) for key, item in value.items()}
    return [_replace(item, table) for item in value] if isinstance(value, list | tuple) else value
