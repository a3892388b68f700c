"""The run folder: everything that a run used and made, in one place.

recipe.toml  recipe.json     the resolved recipe with the origin of each value (for people, for programs)
plugins.json versions.json   every plugin with package and version; Python, platform and packages
seeds.json                   the seed of the run
command.json                 the command that made the folder: run, or one stage alone; as it was typed, secrets masked
status.json                  running, done, failed or interrupted
checksums.json               of a finished run: the checksum of each record (`dynaweb.runs.checksums`)
metrics.jsonl                one line an event
trajectories/ checkpoints/   episodes, weights
report.html                  the report
"""

from __future__ import annotations

import logging
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Any, Literal, get_args

from dynaweb.config import Recipe, restore
from dynaweb.config.files import MALFORMED, parse_json, read_json, understood
from dynaweb.config.recipe import differences
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.masking import MASK, masked
from dynaweb.runs.atomic import write_json, write_text
from dynaweb.runs.checksums import CHECKSUMS, STATUS, SUM, seal
from dynaweb.runs.lock import holder, locked

log = logging.getLogger("dynaweb")

NO_RESULT = (
    "run.observers", "run.observer_settings", "run.log_every", "run.log_metrics",
    "web.browser", "web.endpoint", "web.proxy_port", "web.workers", "cluster.",
    *(f"{role}.engine.{name}" for role in ("policy", "wm", "reward") for name in ("servers", "folder")),
)  # fmt: skip
"""Settings that change no result."""
FREE = (*NO_RESULT, "run.time_budget")
"""Settings that may change on resume: they change no result of what is done already."""

PACKAGES = ("dynaweb", "torch", "transformers", "tokenizers", "safetensors", "numpy", "playwright", "lxml", "pydantic")

RUNS = Path("runs")
"""Where run folders go by default."""
RUN = "run"
ANEW = "start a new run with another --out"
COMMAND = "command.json"
SUBJECT = "subject"

Status = Literal["running", "done", "failed", "interrupted"]
STATES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths and records of one run. Made by `open_run`."""

    path: Path
    resumed: bool = False

    @property
    def command(self) -> str:
        """The command that made the folder, such as `run` or `wm fit`."""
        path = self.path / COMMAND
        return str(_read(path).get("command", RUN)) if path.exists() else RUN

    @property
    def subject(self) -> str:
        """What the command is about beside its recipe, such as the policy that is evaluated; '' where it has none."""
        path = self.path / COMMAND
        return str(_read(path).get(SUBJECT, "")) if path.exists() else ""

    @property
    def how_to_go_on(self) -> str:
        """What to do after an interruption, as the end of a sentence."""
        if self.command == RUN:
            return f"go on with: dynaweb run --resume --out {quote(str(self.path))}"
        return f"give `dynaweb {self.command}` again, with the same settings: what is done is kept"

    @property
    def metrics(self) -> Path:
        """`metrics.jsonl`."""
        return self.path / "metrics.jsonl"

    @property
    def trajectories(self) -> Path:
        """The folder of episodes."""
        return self._folder("trajectories")

    @property
    def checkpoints(self) -> Path:
        """The folder of weights."""
        return self._folder("checkpoints")

    @property
    def report(self) -> Path:
        """`report.html`."""
        return self.path / "report.html"

    def _folder(self, name: str) -> Path:
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path

    @property
    def status(self) -> Status:
        """How the run stands, as last written."""
        with understood(self.path / STATUS, advice=ANEW):
            status: Status = _read(self.path / STATUS)["status"]
        return status

    def set_status(self, status: Status, **details: Any) -> None:
        """Record how the run stands, with any plain data beside it (`stage`, `error`...)."""
        write_json(self.path / STATUS, {"status": status, **details})

    def begin(self) -> None:
        """Record that the run goes on: its records may change from now on, so those of an earlier end have no sums."""
        self.set_status("running")
        (self.path / CHECKSUMS).unlink(missing_ok=True)

    def finish(self) -> None:
        """Record that the run is done, with the checksums of what it has recorded."""
        self.set_status("done", **{SUM: seal(self.path)})

    def recipe(self) -> Recipe:
        """The recipe that the folder was made with. Raises `CheckpointError` when it cannot be read."""
        return restore(_recipe(self.path))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out. Raises `ConfigError` when one is at work here."""
        with locked(self.path / ".lock", what=f"run folder {self.path}", wait=False) as taken:
            if not taken:
                other = holder(self.path / ".lock") or "?"
                raise ConfigError(f"process {other} is at work in {self.path}; wait for it, or choose another --out")
            yield


def open_run(
    recipe: Recipe,
    *,
    out: Path | None = None,
    resume: bool = False,
    plugins: Iterable[Mapping[str, str]] = (),
    base: Path = RUNS,
    command: str = RUN,
    subject: str = "",
) -> RunFolder:
    """Make the folder of a run, or find it again to go on.

    `out` defaults to `<base>/<recipe>-<seed>-<n>`: the next free n, or with `resume` the last one that `dynaweb run`
    made. What other commands make is named after them too, such as `eval-<recipe>-<seed>-<n>`. `command` is recorded:
    only folders of `run` take `resume`. A stage alone goes on from the cache, in its own
    folder too: one that the same command has not finished is taken again without asking. With a `subject`, what the
    command is about beside its recipe (such as the policy that is evaluated), a finished one is taken again too.

    Raises `ConfigError` when a new folder is not empty or cannot be written, when the folder to resume is that of
    another command or subject, or when a resumed run has another recipe (the difference is shown); `CheckpointError`
    when there is nothing to resume.
    """
    path, goes_on = choose_folder(recipe, out=out, resume=resume, base=base, command=command, subject=subject)
    if goes_on:
        _fill(path, recipe, list(plugins))
    else:
        _create(path, recipe, list(plugins), {"command": command, **({SUBJECT: subject} if subject else {})})
    return RunFolder(path, resumed=goes_on)


def choose_folder(
    recipe: Recipe,
    *,
    out: Path | None = None,
    resume: bool = False,
    base: Path = RUNS,
    command: str = RUN,
    subject: str = "",
) -> tuple[Path, bool]:
    """The folder that `open_run` would take, and whether to go on in it. Nothing is made; raises what `open_run` does,
    but for what only making the folder can tell."""
    path = out if out is not None else _default(recipe, base, resume, command)
    if resume and (folder := RunFolder(path)).command != RUN:
        raise ConfigError(
            f"{path} was made by `dynaweb {folder.command}`, and --resume goes on with runs only; {folder.how_to_go_on}"
        )
    if resume or (command != RUN and (_unfinished(path, command) or _repeats(path, command, subject))):
        if not resume and subject and (other := RunFolder(path).subject) and other != subject:
            raise ConfigError(f"{path} was made for {other}, not for {subject}; choose another folder with --out")
        _check_same(path, recipe)
        return path, True
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        go_on = f"Go on with that run by --resume --out {quote(str(path))}, choose" if _resumable(path) else "Choose"
        raise ConfigError(
            f"{path} exists and is not empty; nothing is overwritten. {go_on} another folder with --out, or remove it"
        )
    if any(parent.exists() and not parent.is_dir() for parent in path.parents):
        raise ConfigError(f"run folder {path} cannot be written: Not a directory; choose another with --out")
    return path, False


def last_run(base: Path = RUNS) -> Path:
    """The folder of the run that was at work last, of any recipe. Raises `CheckpointError` when there is none."""
    runs = [path for path in base.glob("*") if _resumable(path) and (path / STATUS).exists()]
    if not runs:
        raise CheckpointError(f"there is no run in {base}/ to resume; name its folder with --out")
    return max(runs, key=lambda path: (path / STATUS).stat().st_mtime_ns)


def _resumable(path: Path, command: str = RUN) -> bool:
    return (path / "recipe.json").exists() and RunFolder(path).command == command


def _unfinished(path: Path, command: str) -> bool:
    """Whether a stage command left this folder before its end: interrupted, failed or killed."""
    if not _resumable(path, command):
        return False
    return not (path / STATUS).exists() or RunFolder(path).status != "done"


def _repeats(path: Path, command: str, subject: str) -> bool:
    """Whether the same command about the same subject came to its end here, so that it may mend what it left."""
    return bool(subject) and _resumable(path, command) and RunFolder(path).subject == subject


def _create(path: Path, recipe: Recipe, plugins: list[Mapping[str, str]], command: Mapping[str, str]) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / COMMAND, {**command, "line": command_line(recipe)})
        # From here on, the folder can be resumed after a kill.
        write_json(path / "recipe.json", saved(recipe))
        _fill(path, recipe, plugins)
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"run folder {path} cannot be written: {reason}; choose another with --out") from error


def _fill(path: Path, recipe: Recipe, plugins: list[Mapping[str, str]]) -> None:
    """Write the records that are not there yet."""
    text = f"# Recipe {recipe.name}, resolved. Each line ends with where its value comes from.\n\n"
    now = versions()
    seeds = {"run": recipe.run.seed}
    records: dict[str, Any] = {"plugins": plugins, "versions": now, "seeds": seeds, "status": {"status": "running"}}
    for name, data in records.items():
        if not (path / f"{name}.json").exists():
            write_json(path / f"{name}.json", data)
        # Now, not when the report is made.
        read_json(path / f"{name}.json", type(data), advice=ANEW, finite=True)
    if not (path / "recipe.toml").exists():
        write_text(path / "recipe.toml", text + recipe.to_toml(origins=True))
    then = {name: str(version) for name, version in _read(path / "versions.json").items()}
    if then != now:
        changed = "; ".join(differences(then, now))
        log.warning("%s was begun with other versions, so results may differ: %s", path, changed)


def command_line(recipe: Recipe) -> str:
    """The words after the shell's prompt that began this process, with `***` for the recipe's secrets; '' for a program
    of one's own that calls dynaweb."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    if "dynaweb" not in (program.name, program.parent.name):
        return ""
    words = []
    for word in sys.argv[1:]:
        setting = word.removeprefix("--set=")
        path, equals, _ = setting.partition("=")
        # A secret that is too short to be looked for in texts is one all the same; so is a table that holds one.
        if equals and any(f"{secret}.".startswith(f"{path.strip()}.") for secret in recipe.secret):
            word = f"{word[: len(word) - len(setting)]}{path}={MASK}"
        words.append(masked(word))
    return " ".join(map(quote, ["dynaweb", *words]))


def saved(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain data that `dynaweb.config.restore` reads."""
    return {
        "name": recipe.name,
        "description": recipe.description,
        "settings": recipe.tree(),
        "origins": dict(recipe.origins),
    }


def _check_same(path: Path, recipe: Recipe) -> None:
    data = _recipe(path)
    old = {key: value for key, value in recipe_flat(data).items() if not key.startswith(FREE)}
    new = {key: value for key, value in recipe_flat(saved(recipe)).items() if not key.startswith(FREE)}
    changes = differences(old, new)
    if changes:
        lines = "\n".join(f"  {line}" for line in changes)
        folder = RunFolder(path)
        go_on = (
            f"Resume it as it is with `dynaweb run --resume --out {quote(str(path))}`, "
            "or start a new run with another --out"
            if folder.command == RUN
            else "Give the settings that it was made with, or choose another --out"
        )
        raise ConfigError(
            f"{path} was made with another recipe, and a run cannot change its settings half-way "
            f"(folder -> now):\n{lines}\n{go_on}"
        )


def recipe_flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted paths and values of a recipe as `saved` wrote it."""
    from dynaweb.config.layers import flatten

    return dict(flatten(data["settings"]))


def _default(recipe: Recipe, base: Path, resume: bool, command: str) -> Path:
    first = "" if command == RUN else f"{command.replace(' ', '-')}-"
    stem = f"{first}{recipe.name}-{recipe.run.seed}-"
    pattern = re.compile(re.escape(stem) + r"(\d+)")
    folders = [path for path in base.glob("*") if not resume or RunFolder(path).command == RUN]
    numbers = [int(m[1]) for path in folders if (m := pattern.fullmatch(path.name))]
    if resume and not numbers:
        raise CheckpointError(f"there is no run {base / stem}<n> to resume; name its folder with --out")
    last = max(numbers, default=0)
    return base / f"{stem}{last if resume else last + 1}"


def _recipe(folder: Path) -> dict[str, Any]:
    """What `saved` wrote, as far as its shape goes."""
    data = _read(folder / "recipe.json")
    tables = [data.get("settings"), data.get("origins", {})]
    if "name" not in data or not all(isinstance(table, dict) for table in tables):
        raise CheckpointError(f"{folder / 'recipe.json'} is damaged (it is no recipe of a run); {ANEW}")
    return data


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise CheckpointError(f"{path.parent} is not a run folder: {path.name} cannot be read (it is not there)")
    return read_json(path, dict, advice=ANEW, finite=True)


def versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages that results depend on; those not installed are left out.

    `commit` is that of dynaweb's sources, where they are a checkout or were installed from one.
    """
    by_package = {"python": sys.version.split()[0], "platform": platform.platform()}
    for package in PACKAGES:
        try:
            by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    commit = _commit()
    return by_package | ({"commit": commit} if commit else {})


def _commit() -> str:
    """The commit that dynaweb was installed from, or of the checkout that it lies in, `-dirty` with changes; or ''."""
    with suppress(metadata.PackageNotFoundError, *MALFORMED):
        installed = parse_json(metadata.distribution("dynaweb").read_text("direct_url.json") or "{}", dict)
        return str(installed["vcs_info"]["commit_id"])
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
