"""The environment `webarena`: real sites behind the browser, tasks out of files, and three ways to grade."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dynaweb.config.sections import Web
from dynaweb.errors import ConfigError, ImageError, InfrastructureError, MissingError, hint
from dynaweb.masking import expanded
from dynaweb.runs.seeding import derive
from dynaweb.types import Action, Image, Judgement, Observation, Split, Task, Trajectory
from dynaweb.web.chromium.logins import Logins, opened
from dynaweb.web.chromium.pool import BrowserPool, pool_of
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.environment import SessionEnvironment
from dynaweb.web.pictures import pictures_wanted
from dynaweb_env_webarena import files, sites
from dynaweb_env_webarena.copies import Copies, Copy, address_sets
from dynaweb_env_webarena.goals import GoalImages
from dynaweb_env_webarena.grading import Grader
from dynaweb_env_webarena.images import asks

if TYPE_CHECKING:
    from dynaweb.protocols import Environment, EnvironmentContext, ExpertPolicy
    from dynaweb_env_webarena import WebarenaConfig

log = logging.getLogger("dynaweb")

AND = " |AND| "
"""Joins the pages that a task starts with, a tab each."""


class CopySession(ChromiumSession):
    """A session whose scripts, and what they give, have the first copy's addresses, as tasks do."""

    copy: Copy | None = None

    async def evaluate(self, url: str, script: str) -> Any:
        """See `Session.evaluate`."""
        if self.copy is None:
            return await super().evaluate(url, script)
        return self.copy.canonical(await super().evaluate(url, self.copy.real(script)))


class WebarenaEnvironment(SessionEnvironment):
    """Plays one episode at a time in a browsing context of its own, on shared sites or on a copy of them."""

    def __init__(self, source: WebarenaSource) -> None:
        self.session: CopySession
        super().__init__(CopySession(source.browser()))
        self._source = source
        self.har: Path | None = None
        """The traffic of the episode, complete once the session is closed."""
        self.copy: Copy | None = None
        """The copy of the sites that this environment has to itself; None where it shares them."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """A clean context, logged in to the task's sites, on its start pages. `seed` changes nothing here.

        Raises `ConfigError` for tasks of other environments, `InfrastructureError` when a site or a login fails.
        """
        if "raw" not in task.meta:
            raise ConfigError(f"Task {task.id!r} is not of WebArena's format: draw it with WebarenaSource.")
        self.har = self._source.new_recording()
        await self._source.reset_once()
        copies = self._source.copies
        if copies.several:
            self.copy = self.copy or await copies.take()
            self.session.urls, self.session.copy = self.copy.addresses, self.copy
            await copies.prepare(self.copy, task.sites)
        login = await self._source.login(task, self.copy)
        await self.session.reset(headers=self._source.headers(task), storage_state=login, har=self.har)
        first, *others = task.start_url.split(AND)
        await opened(self.session, first)
        for url in others:
            await self.session.act(Action("new_tab"))
            await opened(self.session, url)
        if others:
            await self.session.act(Action("tab_focus", index=0))
        return await self._look()

    async def close(self) -> None:
        """See `SessionEnvironment.close`; the copy is free for others."""
        try:
            await super().close()
        finally:
            if self.copy is not None:
                self._source.copies.give_back(self.copy)
            self.copy = None

    async def _look(self) -> Observation:
        page = await super()._look()
        if self.copy is not None:
            self._source.copies.look_at(self.copy, page.url)
        return page


class WebarenaSource:
    """The plugin object: tasks whose sites are configured, environments, and verdicts."""

    def __init__(self, config: WebarenaConfig, context: EnvironmentContext) -> None:
        self.config = config
        self._context = context
        self.web = context.web or Web()
        known = sites.addresses(config)
        sets = address_sets(known)
        self.copies = Copies(config, sets, None if context.web is None else context.web.contexts)
        self.urls: Mapping[str, str] = sets[0]
        """Address of each site; of copies the first one's, which tasks and observations hold."""
        self._hosts = sites.hosts(url for urls in sets for url in urls.values())
        self.accounts = sites.accounts(config)
        self.grader = Grader(config)
        self._pool: BrowserPool | None = None
        self._folder: Path | None = None
        self._resetting: asyncio.Lock | None = None
        self._logins = Logins()
        self._goal_images: GoalImages | None = None
        self._was_reset = False
        self._warned: set[str] = set()
        """Splits whose skipped tasks were told."""
        self._recordings = 0

    # Tasks

    def tasks(self, split: str, *, count: int, seed: int) -> list[Task]:
        """`count` tasks in an order drawn from the seed, or all there are. Raises `ConfigError` or `MissingError`."""
        drawn = self.catalogue(split)
        random.Random(derive(seed, "webarena", split)).shuffle(drawn)
        if split not in self._warned:
            self._warned.add(split)
            for why, number in self.skipped(split).items():
                log.warning("%d tasks of split %s are skipped: %s", number, split, why)
        return drawn[:count]

    def catalogue(self, split: str) -> list[Task]:
        """Every task of a split whose sites are configured, in the order of the file."""
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; {hint(split, get_args(Split))}")
        drawn = [self._task(raw, split) for raw in files.raw_tasks(self.config, split) if not self._lacks(raw)]
        if not drawn:
            lacking = ", ".join(f"{number} tasks: {why}" for why, number in self.skipped(split).items())
            known = ", ".join(self.urls) or "none"
            raise MissingError(
                f"no task of split {split!r} can be played here ({lacking}); sites with an address: {known}"
            )
        return drawn

    @property
    def default_split(self) -> str:
        """What people mean who name no split: a benchmark is for evaluation."""
        return "train" if self.config.train else "test"

    def task(self, task_id: str) -> Task | None:
        """The task of an id, from the file for evaluation, for validation or for training."""
        own = (("validation", self.config.validation), ("train", self.config.train))
        splits = ("test", *(split for split, path in own if path))
        return next((task for split in splits for task in self.catalogue(split) if task.id == task_id), None)

    def skipped(self, split: str) -> dict[str, int]:
        """Tasks whose sites are not configured, by what is missing. They are never scored."""
        reasons = Counter(self._lacks(raw) for raw in files.raw_tasks(self.config, split))
        return {why: number for why, number in sorted(reasons.items()) if why}

    def expert(self, task: Task) -> ExpertPolicy:
        """WebArena's tasks have no scripted experts: raises `MissingError`."""
        raise MissingError(f"there is no scripted expert for {task.id!r}: WebArena's tasks have none")

    # Episodes

    def environment(self) -> WebarenaEnvironment:
        """A new environment."""
        return WebarenaEnvironment(self)

    async def evaluate(self, environment: Environment, trajectory: Trajectory) -> Judgement:
        """The verdict of the configured evaluator on the episode that has just ended in `environment`."""
        if not isinstance(environment, WebarenaEnvironment):
            raise InfrastructureError(f"Only episodes of WebArena can be evaluated here, not of {type(environment)}.")
        if trajectory.end == "infrastructure":
            return Judgement(None, why="a site or the browser failed during the episode")
        if environment.har is not None:
            # The recording is whole only when its context is closed.
            await environment.session.close()
        copy = environment.copy or self.copies.shared
        return await self.grader.grade(trajectory, environment.session, environment.har, copy)

    async def close(self) -> None:
        """End the browser and drop the recordings; calling it twice is allowed."""
        await self.grader.close()
        if self._pool is not None:
            await self._pool.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._pool = self._folder = None

    # What environments ask for

    def browser(self) -> BrowserPool:
        """The browser that all environments share."""
        if self._pool is None:
            self._pool = pool_of(
                self.web,
                self._context.folder,
                hosts=(*self._hosts, *self.config.hosts),
                view=self.config.view,
                **self.config.view_options,
                pictures=pictures_wanted(self._context),
                settle=self.config.settle,
            )
        return self._pool

    def headers(self, task: Task) -> dict[str, str]:
        """The extra headers of all sites of a task."""
        return {
            name: expanded(f"env.headers.{site}.{name}", text)
            for site in task.sites
            for name, text in self.config.headers.get(site, {}).items()
        }

    def new_recording(self) -> Path | None:
        """Where the traffic of the next episode is recorded, if it is needed."""
        if self.config.evaluator != "verified":
            return None
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="dynaweb-har-"))
        self._recordings += 1
        return self._folder / f"{self._recordings}.har"

    async def reset_once(self) -> None:
        """Reset all sites before the first episode, when a reset server is configured."""
        self._resetting = self._resetting or asyncio.Lock()
        async with self._resetting:
            if self.config.reset_url and not self._was_reset:
                async with self.copies.resetting_all():
                    await sites.full_reset(self.config.reset_url, self.config.reset_timeout)
                self._was_reset = True

    async def login(self, task: Task, copy: Copy | None = None) -> Path | None:
        """A stored login for the sites of a task: checked for every episode, made again once when it has expired.

        One that the task brings is checked where `env.logins` says how, and never made again. Each copy of the sites
        has logins of its own. Raises `InfrastructureError` when a site does not answer or a login does not hold.
        """
        own = self._own_state(task.meta["raw"])
        # The pages that the benchmark's accounts are known by say nothing about another account.
        known = self.accounts if own is None else self.config.logins
        wanted = {site: self.accounts[site] for site in task.sites if site in known and self._logs_in(site, task)}
        wanted = sites.together(wanted, self.urls)
        if not wanted:
            return own
        folder = Path(self.config.auth) / (copy.auth if copy is not None else "")
        path = own or folder / f"{'.'.join(sorted(wanted))}_state.json"
        # A session of its own: neither the history nor the recording of the episode holds what was looked at.
        session = ChromiumSession(self.browser())
        if copy is not None:
            session.urls = copy.addresses
        try:
            stored = sites.stored_login(path, {self.urls[site]: account for site, account in wanted.items()})
            if own is None:
                await self._logins.open(session, stored)
                return path
            await session.reset(storage_state=own)
            if not await stored.check(session):
                raise InfrastructureError(f"the stored login {own} does not hold: it is not so that {stored.check}")
        finally:
            await session.close()
        return path

    def _logs_in(self, site: str, task: Task) -> bool:
        needed = task.meta["raw"].get("require_login", True)
        return bool(needed) and site in self.urls and site not in self.config.headers

    def _images(self, raw: files.Raw) -> tuple[Image, ...]:
        """The pictures of a task's goal for a policy that sees; () where it is shown none. Raises `ImageError`."""
        if not self._shows_goals or not files.goal_images(raw):
            return ()
        if self._goal_images is None:
            pictures = pictures_wanted(self._context)
            assert pictures is not None
            hosts = (*self._hosts, *self.config.hosts)
            self._goal_images = GoalImages([*self._task_folders(), Path()], hosts, pictures.images)
        return tuple(self._goal_images.load(sites.filled(name, self.urls)) for name in files.goal_images(raw))

    @property
    def _shows_goals(self) -> bool:
        return self.config.goal_images == "show" and pictures_wanted(self._context) is not None

    def _task_folders(self) -> list[Path]:
        """Where the task files are."""
        task_files = [Path(path) for path in (self.config.path, self.config.validation, self.config.train) if path]
        return [path if path.is_dir() else path.parent for path in task_files]

    def _own_state(self, raw: files.Raw) -> Path | None:
        """The task's own stored login, looked for beside its file, here, and among those that are stored."""
        return sites.own_state(raw, [*self._task_folders(), Path(), Path(self.config.auth)])

    def _lacks(self, raw: files.Raw) -> str:
        """Why a task cannot be played here, or ''."""
        shown = files.goal_images(raw) if self._shows_goals else []
        named = sites.placeholders([files.starts(raw), raw["eval"], shown]) | {
            site for site in raw["sites"] if "__" in files.starts(raw)
        }
        missing = sorted(site for site in named if site not in self.urls)
        if missing:
            return " and ".join(f"{site} has no address ({_where_to_say(site)})" for site in missing)
        own = self._own_state(raw)
        if own is not None and not own.exists():
            return f"its storage_state {raw['storage_state']} is not there"
        for site in raw["sites"] if raw.get("require_login") is True and own is None else ():
            if site not in (*sites.NAMES, *self.accounts, *self.config.headers):
                return f"{site} has no login (set env.logins.{site}, or env.headers.{site})"
        if files.goal_images(raw) and self.config.goal_images == "skip":
            return "its goal comes with images (env.goal_images = show shows them to a policy that sees)"
        if files.goal_images(raw) and self.config.goal_images == "show" and not self._shows_goals:
            return (
                "its goal comes with images, and the policy reads text alone (observation.modality = both shows them; "
                "env.goal_images = address plays it with their addresses)"
            )
        images = not files.is_verified(raw) and "page_image_query" in raw["eval"]["eval_types"]
        if images and self.config.evaluator != "repaired":
            return "page_image_query needs env.evaluator = repaired"
        if images and asks(raw["eval"]) and not self.config.seeing.model:
            return "page_image_query needs a model that sees (set env.seeing.model)"
        verified = files.is_verified(raw)
        if verified != (self.config.evaluator == "verified"):
            return f"its format needs env.evaluator = {'verified' if verified else 'repaired or upstream'}"
        try:  # last, so that nothing is loaded for a task that lacks something else
            self._images(raw)
        except (ImageError, OSError) as error:
            return f"an image of its goal cannot be loaded ({error})"
        return ""

    def _task(self, raw: files.Raw, split: str) -> Task:
        full = sites.filled(raw, self.urls)
        return Task(
            id=str(raw["task_id"]),
            intent=_intent(full) if self.config.goal_images == "address" else str(full["intent"]),
            start_url=files.starts(full),
            sites=tuple(raw["sites"]),
            split=split,  # type: ignore[arg-type]  # checked in `catalogue`
            evaluation=full["eval"] if isinstance(full["eval"], Mapping) else {"eval_types": ["verified"]},
            template=str(raw.get("intent_template_id", raw.get("intent_template", ""))),
            meta={"kind": files.kind_of(raw), "raw": dict(raw)},
            images=self._images(raw),
        )


def _intent(raw: files.Raw) -> str:
    """The goal in words, with the addresses of its images."""
    images = files.goal_images(raw)
    suffix = f" (with the image{'s' if len(images) > 1 else ''} {', '.join(images)})" if images else ""
    return f"{raw['intent']}{suffix}"


def _where_to_say(site: str) -> str:
    """What gives a site its address: variables are read for the benchmark's own sites alone."""
    return f"set {site.upper()} or env.urls" if site in sites.NAMES else f"set env.urls.{site}"
