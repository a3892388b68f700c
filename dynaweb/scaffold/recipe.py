"""`dynaweb new recipe`: a recipe on top of the shipped `own`, for a model, sites and trajectories of one's own.

The answers come from flags, and on a terminal from questions. All of them are checked before anything is written: task
files are read, demonstrations are imported into a temporary file, and the recipe is resolved. What is written passes
`dynaweb run FILE --dry-run` on the machine that it was written for.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dynaweb.config import resolve
from dynaweb.config.files import expanded
from dynaweb.data.demonstrations import read_demonstrations, stores_of
from dynaweb.data.importers import FORMATS, RUN, ImportReport, read_trajectories
from dynaweb.data.store import SUFFIX, TrajectoryStore
from dynaweb.errors import ConfigError, MissingError, hint
from dynaweb.estimate import estimate
from dynaweb.estimate.machine import ACCELERATORS, Machine, look, named
from dynaweb.estimate.remedies import fitting
from dynaweb.estimate.sources import DEMOS, sources_of
from dynaweb.runs.atomic import write_text

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
"""The model that a question offers."""
HELD_OUT = 0.3
"""Share of the task templates that are kept for the evaluation where one file holds all tasks."""
ASSUMED = "h100"
"""The GPU that a recipe is planned for where there is none here and `on` does not say."""
TRIAL: Mapping[str, Any] = {
    **{"policy.max_new_tokens": 24, "wm.max_new_tokens": 24, "wm.retries": 0, "web.contexts": 4},
    **{"sft.steps": 2, "sft.batch": 4, "explore.episodes": 4, "explore.steps": 3, "wm_fit.steps": 2, "wm_fit.batch": 4},
    **{"dream.horizon": 2, "rl.updates": 1, "rl.tasks": 2, "rl.n": 2, "rl.bc_batch": 2, "rl.checkpoint_every": 1},
    **{"eval.episodes": 4, "eval.steps": 3, "controls.sft_steps": [3]},
}
"""Counts with which every stage runs once, and next to nothing is learned."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SITE = re.compile(r"__([A-Z][A-Z0-9_]*?)__")

Ask = Callable[[str], str]
"""Asks a person one question and returns the answer, '' for the default."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a recipe is written from. `gpus` None: as many as this machine has; `on` as in `dynaweb run --on`."""

    model: str = ""
    tasks: str = ""
    eval_tasks: str = ""
    sites: Mapping[str, str] = field(default_factory=dict)
    demos: tuple[str, ...] = ()
    """Sources, each with `:FORMAT` behind it where it has to be imported."""
    gpus: int | None = None
    on: str = ""
    trial: bool = False


@dataclass(frozen=True, slots=True)
class NewRecipe:
    """The written recipe: its files, the recipe first, how to run it, and what is to be known about it."""

    files: tuple[Path, ...]
    run: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.files))


def new_recipe(name: str, answers: Answers, folder: Path | None = None, ask: Ask | None = None) -> NewRecipe:
    """Write `NAME.toml` into `folder` (default: here), with the files that it needs beside it.

    `ask` is asked for what the answers leave out; without it that is an error. Raises `ConfigError` for answers that
    are missing or wrong and for files that are there already, `MissingError` for sources that are not there. Nothing is
    written then.
    """
    if not _NAME.fullmatch(name) or name.endswith(".toml"):
        raise ConfigError(f"{name!r} is no name of a recipe: use letters, digits, '.', '_' and '-', such as mine")
    folder = folder or Path()
    target = folder / f"{name}.toml"
    answers = _completed(answers, ask)
    machine, ranks = _machine(answers)
    tasks = _read_tasks(answers.tasks)
    _check_sites(answers.sites, tasks)
    with tempfile.TemporaryDirectory() as scratch:
        demos, notes = _demonstrations(answers.demos, folder / f"{name}-demos{SUFFIX}", Path(scratch))
        paths = {"train": Path(answers.tasks), "path": Path(answers.eval_tasks)}
        files: dict[Path, Path] = {}
        if answers.eval_tasks:
            train, test = tasks, _read_tasks(answers.eval_tasks)
        else:
            goals = {_words(one.task.intent) for one in read_demonstrations(str(demos)).episodes}
            train, test = _divided(answers.tasks, tasks, goals)
            for key, part, split in (("train", train, "train"), ("path", test, "test")):
                paths[key] = folder / f"{name}-{split}.json"
                files[paths[key]] = Path(scratch) / paths[key].name
                files[paths[key]].write_text(json.dumps(part, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if demos.parent == Path(scratch):
            files[folder / demos.name] = demos
        _refuse_existing([target, *files])
        settings: dict[str, Any] = {
            "model.path": answers.model,
            "env.task_settings.train": str(paths["train"]),
            "env.task_settings.path": str(paths["path"]),
            "env.task_settings.urls": dict(answers.sites),
            "data.demos": str(folder / demos.name if demos in files.values() else demos),
            **(TRIAL if answers.trial else {}),
            **({"model.device": "cpu", "model.dtype": "float32"} if machine.is_cpu else {}),
        }
        now = {str(path): str(source) for path, source in files.items()}
        checked = {key: now.get(value, value) if isinstance(value, str) else value for key, value in settings.items()}
        fit, ranks, more = _fitted(checked, machine, ranks)
        _check(checked | fit, scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for path, source in files.items():
            path.write_bytes(source.read_bytes())
        nproc = f" --nproc {ranks}" if ranks > 1 else ""
        command = f"dynaweb run {target}{nproc}"
        write_text(target, _text(name, settings | fit, command, machine, [*train, *test]))
    return NewRecipe((target, *files), command, (*notes, *more))


# --- The answers


def _completed(answers: Answers, ask: Ask | None) -> Answers:
    """The answers with what was left out asked for. Raises `ConfigError` with all that is missing where nobody is."""
    if ask is None:
        lacking = {
            f"--model NAME|PATH, such as --model {MODEL}": answers.model,
            "--tasks FILE, tasks in WebArena's format": answers.tasks,
            f"--demos FILE[:FORMAT], trajectories ({DEMOS})": answers.demos,
        }
        missing = [f"\n      {flag}" for flag, value in lacking.items() if not value]
        if missing:
            raise ConfigError(f"a recipe of your own needs, and nobody is there to be asked:{''.join(missing)}")
        return answers
    if not answers.model:
        model = ask(f"Chat model, a folder or a name of the Hugging Face hub [{MODEL}]: ") or MODEL
        answers = replace(answers, model=model)
    if not answers.tasks:
        answers = replace(answers, tasks=_required(ask, "Tasks in WebArena's format, a file or a folder: "))
        share = f"{HELD_OUT:.0%} of these"
        answers = replace(answers, eval_tasks=ask(f"Other tasks for the evaluation, a file or a folder [{share}]: "))
    for site in sorted(_sites_in(_read_tasks(answers.tasks)) - answers.sites.keys()):
        address = ask(f"Address of the site {site}, such as http://my-host:7770 [the variable {site.upper()}]: ")
        if address:
            answers = replace(answers, sites={**answers.sites, site: address})
    if not answers.demos:
        text = _required(ask, f"Trajectories, FILE or FILE:FORMAT ({', '.join(FORMATS)}), several with spaces: ")
        answers = replace(answers, demos=tuple(text.split()))
    if answers.gpus is None and not answers.on:
        here = _here()
        answers = replace(answers, gpus=_count(ask(f"GPUs [{here}]: ") or str(here)))
    return answers


def _required(ask: Ask, question: str) -> str:
    for _ in range(3):
        if text := ask(question):
            return text
    raise ConfigError(f"no answer to: {question.rstrip(': ')}; give it as a flag (dynaweb new recipe --help)")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{text!r} is no number of GPUs; give 0 for a CPU, or how many one host has")
    return int(text)


def _here() -> int:
    machine = look()
    return 0 if machine.is_cpu else machine.devices


def _machine(answers: Answers) -> tuple[Machine, int]:
    """The machine that the recipe is for, and how many processes run it."""
    if answers.on:
        machine = named(answers.on)
        if answers.gpus not in (None, machine.devices) and not machine.is_cpu:
            raise ConfigError(f"--gpus {answers.gpus} and --on {answers.on} disagree; give one of the two")
        return machine, machine.devices
    here = look()
    gpus = answers.gpus if answers.gpus is not None else 0 if here.is_cpu else here.devices
    if gpus == 0:
        return (here if here.is_cpu else look("cpu")), 1
    if not here.is_cpu and gpus <= here.devices:
        return here, gpus
    most = ACCELERATORS[ASSUMED].most
    if gpus > most:
        raise ConfigError(f"--gpus {gpus}: one host has {most} at most; docs/scale.md tells of several hosts")
    return named(f"{gpus}x{ASSUMED}"), gpus


# --- Tasks and sites


def _read_tasks(path: str) -> list[Any]:
    """Tasks of a list, or of a folder with one file each. What is in them is checked by the environment."""
    source = expanded(path)
    files = sorted(source.glob("*.json")) if source.is_dir() else [source]
    loaded = []
    for file in files:
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise MissingError(f"the task file {file} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the task file {file} is no JSON: {error}") from None
        loaded += data if isinstance(data, list) else [data]
    if not loaded:
        raise ConfigError(f"{path} holds no tasks; give a JSON list of tasks, or a folder with one file a task")
    return loaded


def _divided(path: str, tasks: Sequence[Any], goals: Set[str]) -> tuple[list[Any], list[Any]]:
    """Tasks to practise on and to be evaluated on: whole templates apart where there are several, in a fixed order.

    Those that have fewest of the demonstrated `goals` are kept for the evaluation.
    """
    groups: dict[str, list[Any]] = {}
    for number, task in enumerate(tasks):
        about = task if isinstance(task, dict) else {}
        template = about.get("intent_template_id", about.get("intent_template", f"task {number}"))
        groups.setdefault(str(template), []).append(task)
    if len(groups) == 1:
        groups = {str(number): [task] for number, task in enumerate(tasks)}
    if len(groups) < 2:
        raise ConfigError(
            f"{path} holds one task, and nobody can be evaluated on the task that was practised; give others with "
            "--eval-tasks"
        )
    names = sorted(groups)
    random.Random(0).shuffle(names)
    names.sort(key=lambda name: sum(_words(_intent(task)) in goals for task in groups[name]))
    count = min(max(1, round(HELD_OUT * len(names))), len(names) - 1)
    apart = set(names[:count])
    kept = {id(task) for name, few in groups.items() if name in apart for task in few}
    return [task for task in tasks if id(task) not in kept], [task for task in tasks if id(task) in kept]


def _intent(task: Any) -> str:
    return str(task.get("intent", "")) if isinstance(task, dict) else ""


def _words(goal: str) -> str:
    return " ".join(goal.split())


def _sites_in(tasks: Iterable[Any]) -> set[str]:
    """The sites that tasks name by a placeholder, such as `__SHOP__`."""
    return {site.lower() for site in _SITE.findall(json.dumps(list(tasks)))}


def _check_sites(sites: Mapping[str, str], tasks: Iterable[Any]) -> None:
    known = _sites_in(tasks)
    for site in sites:
        if site not in known:
            raise ConfigError(f"no task names the site {site!r} (as __{site.upper()}__); {hint(site, known)}")


def parse_sites(options: Iterable[str]) -> dict[str, str]:
    """Addresses by site out of `NAME=http://...` texts. Raises `ConfigError` for another form."""
    sites = {}
    for option in options:
        name, equals, address = option.partition("=")
        if not equals or not name or not address.startswith(("http://", "https://")):
            raise ConfigError(f"--site {option}: write it as NAME=ADDRESS, such as --site shop=http://my-host:7770")
        sites[name.strip().lower()] = address.rstrip("/")
    return sites


# --- Demonstrations


def _demonstrations(sources: Sequence[str], store: Path, scratch: Path) -> tuple[Path, list[str]]:
    """The source for `data.demos`: one that needs no import as it is, else a store in `scratch` named like `store`."""
    parts = [_with_format(source) for source in sources]
    if len(parts) == 1 and not parts[0][1]:
        stores_of(parts[0][0])
        return Path(parts[0][0]), []
    target, notes = scratch / store.name, []
    for source, form in parts:
        report = ImportReport()
        TrajectoryStore(target).extend(read_trajectories(form or RUN, source, report))
        notes.append(f"{source}: {report}")
        if not report.trajectories:
            raise ConfigError(f"{source} gave no trajectory: {report}")
    return target, notes


def _with_format(source: str) -> tuple[str, str]:
    """A source and its format, '' for one that needs no import. Raises `ConfigError` for an unknown format."""
    path, colon, form = source.rpartition(":")
    if colon and form in FORMATS:
        return path, form
    if not colon or expanded(source).exists() or "/" in form or not re.fullmatch(r"[a-z0-9-]+", form):
        return source, ""
    raise ConfigError(f"--demos {source}: no format is called {form!r}; {hint(form, FORMATS)}")


# --- The recipe


def _fitted(settings: Mapping[str, Any], machine: Machine, ranks: int) -> tuple[dict[str, Any], int, list[str]]:
    """Settings that make the recipe fit its machine, the processes for it, and what is to be known of that."""
    recipe = resolve("own", overrides=settings)
    plan = estimate(recipe, machine, ranks=ranks)
    if plan is None:
        return {}, ranks, [f"whether {recipe.model.path} fits is known once its config.json is here (--dry-run)"]
    if not plan.problems():
        return {}, ranks, []
    for changes, processes in fitting(recipe, machine, ranks):
        return dict(changes), processes, [f"it fits {machine.words} with the settings at the end of the recipe"]
    plan.check()
    return {}, ranks, []


def _check(settings: Mapping[str, Any], scratch: str) -> None:
    """Raise what a dry run would say of tasks and demonstrations."""
    _, problems = sources_of(resolve("own", overrides=settings))
    if problems:
        raise type(problems[0])(str(problems[0]).replace(f"{scratch}/", "")) from problems[0]


def _refuse_existing(paths: Iterable[Path]) -> None:
    present = [str(path) for path in paths if path.exists()]
    if present:
        raise ConfigError(f"{', '.join(present)} is there already, and nothing is overwritten; choose another name")


def _text(name: str, settings: Mapping[str, Any], command: str, machine: Machine, tasks: Sequence[Any]) -> str:
    """The recipe as TOML with comments."""
    own = dict(settings)
    urls = own.pop("env.task_settings.urls")
    lines = [
        f"# Written by `dynaweb new recipe {name}`, for {machine.words}. Run it with:",
        f"#   {command}",
        "# Paths are seen from the folder that this command is given in. `dynaweb config show` prints every setting.",
        'extends = "own"',
        f"description = {_toml(f'{name}: own model, sites and trajectories')}",
        "",
        "# The chat model. Its size decides rates, precision and lengths that nothing here sets.",
        "[model]",
        f"path = {_toml(own.pop('model.path'))}",
        *(f"{path.partition('.')[2]} = {_toml(own.pop(path))}" for path in list(own) if path.startswith("model.")),
        "",
        "# Tasks to practise on, and other tasks for the evaluation.",
        "[env.task_settings]",
        f"train = {_toml(own.pop('env.task_settings.train'))}",
        f"path = {_toml(own.pop('env.task_settings.path'))}",
    ]
    if "fuzzy_match" in json.dumps(tasks):
        lines += [
            "# Answers that are compared by meaning (fuzzy_match) stay ungraded without a model behind a server:",
            '# judge = { model = "NAME", base_url = "http://localhost:8000/v1" }',
        ]
    lines += [
        "# A site with a login; the password is in the environment variable:",
        '# logins.shop = { username = "ann", password_variable = "SHOP_PASSWORD" }',
        "",
        "# Where the sites are; one that is missing here is read from the environment variable of its name (SHOP).",
        "[env.task_settings.urls]",
        *(f"{site} = {_toml(address)}" for site, address in urls.items()),
        "",
        "# Trajectories that SFT and behaviour cloning learn from.",
        "[data]",
        f"demos = {_toml(own.pop('data.demos'))}",
    ]
    trial = "Tiny counts, to see every stage run once; leave them out for the real run." if "sft.steps" in own else ""
    fit = f"What makes it fit {machine.words}." if own.keys() - TRIAL.keys() else ""
    lines += _block([comment for comment in (trial, fit) if comment], own)
    return "\n".join([*lines, ""])


def _block(comments: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Settings by section, below comments."""
    sections: dict[str, list[str]] = {}
    for path, value in settings.items():
        section, _, key = path.partition(".")
        sections.setdefault(section, []).append(f"{key} = {_toml(value)}")
    lines = ["", *(f"# {comment}" for comment in comments)] if sections else []
    for section, rows in sections.items():
        lines += [f"[{section}]", *rows]
    return lines


def _toml(value: Any) -> str:
    from tomli_w import dumps

    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return dumps({"v": value}).partition("=")[2].strip()
