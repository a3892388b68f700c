"""The environment `sites`: embedded sites behind a session, one world per episode, and the verdict on an episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dynaweb.config.sections import Web
from dynaweb.errors import ConfigError, InfrastructureError
from dynaweb.types import Judgement, Observation, Task, Trajectory
from dynaweb.web.chromium.pool import BrowserPool, pool_of
from dynaweb.web.environment import SessionEnvironment
from dynaweb.web.evaluators import evaluate
from dynaweb.web.pictures import pictures_wanted
from dynaweb_env_sites.expert import SitesExpert
from dynaweb_env_sites.server import SitesApp, SitesServer, create_app
from dynaweb_env_sites.tasks import site_seeds, sites, sites_tasks, task_of, task_variants, templates
from dynaweb_env_sites.world_store import HEADER, WorldStore

if TYPE_CHECKING:
    from dynaweb.protocols import Environment, EnvironmentContext
    from dynaweb.web.session import Session
    from dynaweb_env_sites import SitesConfig
    from dynaweb_env_sites.goals import Template


class SitesEnvironment(SessionEnvironment):
    """Plays one episode at a time in its own world; other environments on the same server do not see it."""

    def __init__(self, session: Session, store: WorldStore) -> None:
        super().__init__(session)
        self._store = store
        self._token = store.new_token()

    async def reset(self, task: Task, seed: int) -> Observation:
        """A fresh world of the task's site, a clean session, the start page. `seed` changes nothing here.

        Raises `ConfigError` for tasks that do not say which site they are for, `InfrastructureError` when the browser
        or the server fails.
        """
        site_seed = task.meta.get("site_seed")
        if not isinstance(site_seed, int):
            raise ConfigError(
                f"Task {task.id!r} does not belong to the embedded sites: its meta has no `site_seed` (an integer). "
                "Draw tasks with SitesSource.tasks or sites_tasks."
            )
        self._store.put(self._token, self._store.world(site_seed, task.split))
        await self.session.reset(headers={HEADER: self._token})
        await self.session.goto(task.start_url)
        return await self._look()

    async def close(self) -> None:
        """Close the session and forget the world; calling it twice is allowed."""
        self._store.drop(self._token)
        await super().close()

    def snapshot(self, site: str) -> dict[str, Any]:
        """The state of a site in this episode's world. Raises `InfrastructureError` before `reset`."""
        world = self._store.get(self._token)
        if world is None:
            raise InfrastructureError("There is no world to look at: the environment was not reset, or is closed.")
        return world.snapshot(site)


class SitesSource:
    """The plugin object: tasks, environments, experts and verdicts of the embedded sites.

    The server and the browser start with the first environment that is reset; `close` ends them. Browser settings come
    from the context (the recipe's `web` section) where it has them.
    """

    def __init__(self, config: SitesConfig, context: EnvironmentContext) -> None:
        self.config = config
        self._context = context
        self.web = context.web or Web()
        self._app: SitesApp = create_app(WorldStore(sites()))
        self._server: SitesServer | None = None
        self._pool: BrowserPool | None = None

    def tasks(self, split: str, *, count: int, seed: int) -> list[Task]:
        """`count` tasks of a split, the same for the same seed, templates in rotation. Raises `ConfigError`."""
        sites_of_split = getattr(self.config, f"{split}_sites", 0)
        return sites_tasks(
            split,
            count,
            seed,
            self.config.max_best_steps,
            templates=self.config.templates or tuple(self._templates()),
            site_seeds=site_seeds(split, sites_of_split),
        )

    def _templates(self) -> Mapping[str, Template]:
        return templates(self.config.sites, long=self.config.length == "long")

    def task(self, task_id: str) -> Task | None:
        """The task of an id such as `shop/add-to-cart:test:30004:17`."""
        return task_of(task_id)

    def variants(self, task: Task, *, count: int, seed: int) -> list[Task]:
        """Other tasks of the template of `task`, on the sites of its split, that are no longer than configured."""
        seeds = site_seeds(task.split, getattr(self.config, f"{task.split}_sites", 0))
        return task_variants(task, count, seed, site_seeds=seeds, max_best_steps=self.config.max_best_steps)

    def environment(self) -> SitesEnvironment:
        """A new environment. Raises `InfrastructureError` when the configured port is taken."""
        return SitesEnvironment(self._session(), self._app.store)

    def expert(self, task: Task) -> SitesExpert:
        """The scripted expert of a task, at its first step. Raises `MissingError` when the task has no plan."""
        return SitesExpert(task)

    async def evaluate(self, environment: Environment, trajectory: Trajectory) -> Judgement:
        """The verdict on the episode that has just ended in `environment`: 1, 0, or None when it broke down.

        An episode that was not ended by `stop` has failed, whatever the sites' state is. Raises `InfrastructureError`
        for environments of other sources.
        """
        if not isinstance(environment, SitesEnvironment):
            raise InfrastructureError(
                f"Only episodes of SitesEnvironment can be evaluated here, not of {type(environment).__name__}."
            )
        if trajectory.end == "infrastructure":
            return Judgement(None, why="the browser or the server failed during the episode")
        if trajectory.answer is None or trajectory.final is None:
            return Judgement(0.0, why=f"the episode was not ended by stop ({trajectory.end})")
        task = trajectory.task
        return await evaluate(
            task.evaluation,
            answer=trajectory.answer,
            url=trajectory.final.url,
            session=environment.session,
            extra={"server_state": lambda wanted: server_state(wanted, environment.snapshot(task.sites[0]))},
        )

    async def close(self) -> None:
        """End browser and server; calling it twice is allowed."""
        if self._pool is not None:
            await self._pool.close()
        if self._server is not None:
            self._server.stop()
        self._pool = self._server = None

    def _session(self) -> Session:
        if self.config.driver == "static":
            from dynaweb.web.static.session import StaticSession

            if pictures_wanted(self._context) is not None:
                raise ConfigError(
                    "the driver static draws no pages, and observation.modality asks for pictures; set env.driver to "
                    "chromium, or observation.modality = text"
                )

            hosts = [site.host for site in self._app.store.sites.values()]
            return StaticSession(self._app, hosts=hosts, max_options=self.config.max_options)
        # Imports Playwright, which static episodes do not need.
        from dynaweb.web.chromium.session import ChromiumSession

        return ChromiumSession(self._browser())

    def _browser(self) -> BrowserPool:
        if self._pool is None:
            self._server = SitesServer(self._app, port=self.config.port, threads=self.config.threads).start()
            self._pool = pool_of(
                self.web,
                self._context.folder,
                urls=self._server.urls,
                view=self.config.view,
                **self.config.view_options,
                pictures=pictures_wanted(self._context),
            )
        return self._pool


def server_state(evaluation: Mapping[str, Any], snapshot: Mapping[str, Any]) -> Judgement:
    """The server-state check of an evaluation: 1 when every path into the snapshot has its value.

    A path that is not there counts as None. An evaluation without checks cannot be graded.
    """
    checks = evaluation.get("server_state") or ()
    for check in checks:
        actual = look_up(snapshot, check["path"])
        # As JSON, so that a task that went through a file (lists, no tuples) is judged alike.
        if json.dumps(actual, sort_keys=True) != json.dumps(check["equals"], sort_keys=True):
            return Judgement(0.0, why=f"{check['path']} is {actual!r}, not {check['equals']!r}")
    return Judgement(1.0, why="as wanted") if checks else Judgement(None, why="there are no server_state checks")


def look_up(snapshot: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; None when a part of it is missing."""
    value: Any = snapshot
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
