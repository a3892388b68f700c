"""Dreamed pages behind the interface of a real environment.

What code can decide is never dreamed: refused actions, actions without effect and changes inside the page
(`dynaweb.worldmodels.dynamics`), the browser's history, and tabs. Everything else is asked of the world model.

The world ends a dream in three ways: the prediction says that the task is over, there is no prediction, or it cannot be
trusted. The agent's `stop`, unreadable replies and the horizon end episodes of every kind (`dynaweb.rollout.episode`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dynaweb.errors import EngineError, ImageError, MissingError
from dynaweb.plugin import contracts
from dynaweb.protocols import DreamContext, PluginContext, RemembersSites
from dynaweb.runs.seeding import derive
from dynaweb.types import (
    Action,
    Image,
    Judgement,
    Observation,
    Prediction,
    Screenshot,
    StepFacts,
    StepResult,
    Tab,
    Task,
    Trajectory,
)
from dynaweb.web.delta.diff import match
from dynaweb.web.page.text import render
from dynaweb.worldmodels.dynamics import in_page, refusal
from dynaweb.worldmodels.memory import site_of_task

if TYPE_CHECKING:
    from dynaweb.protocols import Environment, ExpertPolicy, PictureSettings, WorldModel
    from dynaweb_env_dream import DreamConfig

StartPages = Callable[[Task], Observation | None]
"""The recorded real start page of a task, or None."""
InPage = Callable[[Observation, Action], Observation | None]
"""The page after an action that code decides, or None."""
BLANK = Observation(url="about:blank", nodes=())


@dataclass
class _DreamTab:
    """One tab: its page, whether a world model imagined it, and the pages behind and ahead of it with the same.

    `origins` has a letter for each element of the page (`dynaweb.types.ORIGINS`), '' on a page without elements.
    """

    page: Observation
    imagined: bool = False
    origins: str = ""
    back: list[tuple[Observation, bool, str]] = field(default_factory=list)
    ahead: list[tuple[Observation, bool, str]] = field(default_factory=list)

    def visit(self, page: Observation, *, imagined: bool, submitted: bool, origins: str) -> None:
        """Show a predicted page; a new address or a submitted form is a new entry of the history, as in a browser."""
        if submitted or page.url != self.page.url:
            self.back.append((self.page, self.imagined, self.origins))
            self.ahead.clear()
        self.page, self.imagined, self.origins = page, imagined, origins

    def travel(self, origin: list[tuple[Observation, bool, str]], goal: list[tuple[Observation, bool, str]]) -> bool:
        """Take one entry from `origin`, leaving the current page on `goal`; False without an entry."""
        if origin:
            goal.append((self.page, self.imagined, self.origins))
            page, self.imagined, self.origins = origin.pop()
            self.page = replace(page, notice="")
            return True
        return False


class DreamEnvironment:
    """One dream at a time: `reset` takes the recorded start page of the task, `step` follows rules, then the model.

    Dreams with the same seed are the same world: the prediction is drawn from the seed, the page and the action.
    `StepFacts.imagined` marks pages that the world model wrote, and what code makes of them; pages that a prediction
    recalled, and the first one, are real.
    A page that the world model could not write ends the dream: `StepResult.error` says why and
    `StepFacts.world_model_error` that the policy is not to blame. So does a page that cannot be trusted: when the
    product of the predictions' confidences falls below `floor`, the dream ends and `StepFacts.untrusted` says why.

    `rules` say what code decides inside a page.
    Where `pictures` are wanted and the world model draws, every page has one; one that cannot be drawn is a notice.
    """

    def __init__(
        self,
        world_model: WorldModel,
        start_page: StartPages,
        floor: float = 0.0,
        pictures: PictureSettings | None = None,
        rules: InPage = in_page,
    ) -> None:
        self.world_model = world_model
        self._pictures = pictures if pictures is not None and pictures.pictures else None
        self._draws = contracts.drawing(world_model) if self._pictures is not None else None
        self.start_page = start_page
        self.floor = floor
        self._in_page = rules
        self._predicts: WorldModel = world_model
        self._trust = 1.0
        self._tabs: list[_DreamTab] = []
        self._current = 0
        self._actions: list[Action] = []
        self._seed = 0
        self._goal = ""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start from the real page that was recorded for the task. Raises `MissingError` when there is none."""
        start = self.start_page(task)
        if start is None:
            raise MissingError(f"no start page was recorded for task {task.id!r}; explore it in its environment first")
        self._tabs = [_DreamTab(start, origins="r" * len(start.nodes))]
        self._current, self._actions, self._seed = 0, [], seed
        remembers = isinstance(self.world_model, RemembersSites)
        self._predicts = self.world_model.on_site(site_of_task(task)) if remembers else self.world_model
        self._goal = task.intent
        self._trust = 1.0
        return await self._pictured()

    async def step(self, action: Action) -> StepResult:
        """Act on the dreamed page."""
        page = self._tab.page
        if action.kind == "stop":
            return StepResult(page, done=True)
        why = refusal(page, action)
        if why:
            result = self._here(error=why)
        else:
            try:
                result = await self._do(page, action)
            finally:
                self._actions.append(action)
        return replace(result, observation=await self._pictured()) if self._draws is not None else result

    async def _pictured(self) -> Observation:
        """The page of the current tab, with its picture where it has none yet and the world model draws."""
        page = self._tab.page
        if self._draws is not None and page.screenshot is None:
            try:
                image = contracts.drawn(self._draws, await self._draws.draw(page))
                page = self._with_picture(page, image)
            except (ImageError, OSError) as error:
                page = replace(page, notice="; ".join(filter(None, (page.notice, f"this page is not drawn: {error}"))))
            self._tab.page = page
        return page

    def _with_picture(self, page: Observation, image: Image | None) -> Observation:
        if image is None or self._pictures is None:
            return page
        window = (self._pictures.width, self._pictures.height)
        shot = Screenshot(image, window, image.width / window[0], self._pictures.marks)
        return replace(page, screenshot=shot)

    async def close(self) -> None:
        """Nothing to free."""

    @property
    def _tab(self) -> _DreamTab:
        return self._tabs[self._current]

    async def _do(self, page: Observation, action: Action) -> StepResult:
        if action.kind in {"new_tab", "tab_focus", "close_tab"}:
            return self._change_tab(action)
        tab = self._tab
        if action.kind == "go_back":
            return self._here(error="" if tab.travel(tab.back, tab.ahead) else "there is no page to go back to")
        if action.kind == "go_forward":
            return self._here(error="" if tab.travel(tab.ahead, tab.back) else "there is no page to go forward to")
        decided = self._without_focus(page, action) or self._in_page(page, action)
        if decided is not None:
            self._tab.page = decided
            return self._here()
        return await self._dream(page, action)

    def _without_focus(self, page: Observation, action: Action) -> Observation | None:
        """Enter does something only where the action before left the focus in a form."""
        last = self._actions[-1] if self._actions else None
        if action.kind == "press" and (last is None or last.kind not in {"type", "select", "click"}):
            return replace(page, notice="")
        return None

    async def _dream(self, page: Observation, action: Action) -> StepResult:
        seed = derive(self._seed, "predict", render(page, "compact"), repr(action))
        try:
            prediction = await self._predicts.predict(
                page, action, seed=seed, history=tuple(self._actions), goal=self._goal
            )
        except EngineError as error:
            # A page that grew beyond the model's context ends this dream, not the run.
            prediction = Prediction(None, error=str(error))
        facts = _facts(prediction)
        if prediction.next_observation is None:
            why = prediction.error or "the world model gave no page"
            return StepResult(page, done=True, error=why, facts=replace(facts, world_model_error=why))
        self._trust *= 1.0 if prediction.confidence is None else prediction.confidence
        if self._trust < self.floor:
            why = f"the expected fidelity of the dream fell to {self._trust:.3f}, below {self.floor:g}"
            return StepResult(page, done=True, facts=replace(facts, untrusted=why))
        clicked = page.node(action.target) if action.kind == "click" and action.target is not None else None
        submitted = action.enter or (clicked and clicked.role) == "button"
        origins = _origins(page, self._tab.origins, prediction.next_observation, prediction)
        following = self._with_picture(prediction.next_observation, prediction.image)
        self._tab.visit(following, imagined=not prediction.recalled, submitted=submitted, origins=origins)
        return self._here(done=prediction.done, facts=facts)

    def _here(self, *, done: bool = False, error: str = "", facts: StepFacts | None = None) -> StepResult:
        """The current page; a refusal is also its notice, as a real session shows it."""
        if error:
            self._tab.page = replace(self._tab.page, notice=error)
        origins = self._tab.origins if self._tab.imagined else ""
        facts = replace(facts or StepFacts(), imagined=self._tab.imagined, origins=origins)
        return StepResult(self._tab.page, done=done, error=error, facts=facts)

    def _change_tab(self, action: Action) -> StepResult:
        if action.kind == "new_tab":
            self._tabs.append(_DreamTab(BLANK))
            self._current = len(self._tabs) - 1
        elif action.kind == "tab_focus":
            if action.index is None or not 0 <= action.index < len(self._tabs):
                return self._here(error=f"there is no tab {action.index}; tabs run from 0 to {len(self._tabs) - 1}")
            self._current = action.index
        elif len(self._tabs) > 1:
            self._tabs.pop(self._current)
            self._current = min(self._current, len(self._tabs) - 1)
        else:
            return self._here(error="the last tab cannot be closed")
        self._show_tabs()
        return self._here()

    def _show_tabs(self) -> None:
        """Pages of views that list tabs keep listing them."""
        if any(tab.page.tabs for tab in self._tabs):
            tabs = tuple(Tab(t.page.title, t.page.url, t is self._tab) for t in self._tabs)
            self._tab.page = replace(self._tab.page, tabs=tabs)


def _origins(before: Observation, known: str, after: Observation, prediction: Prediction) -> str:
    """Where the elements of a predicted page come from; `known` says so of those of the page before."""
    if prediction.recalled:
        return "r" * len(after.nodes)
    base = before.nodes if prediction.base is None else prediction.base.nodes
    kept = [
        old if old >= 0 and (base[old].value, base[old].props) == (node.value, node.props) else -1
        for old, node in zip(match(base, after.nodes), after.nodes, strict=True)
    ]
    if prediction.base is not None:
        return "".join("r" if old >= 0 else "i" for old in kept)
    return "".join("i" if old < 0 or known[old : old + 1] == "i" else "c" for old in kept)


def _facts(prediction: Prediction) -> StepFacts:
    if prediction.recalled:
        return StepFacts(recalled=True)
    return StepFacts(
        dreamed=True, tokens=prediction.tokens, logprob=prediction.logprob, confidence=prediction.confidence
    )


class DreamSource:
    """`--env dream`: dreams made of another environment's tasks and start pages.

    Raises `MissingError` for a context without what a dream is made of.
    """

    def __init__(self, config: DreamConfig, context: PluginContext) -> None:
        if not isinstance(context, DreamContext):
            raise MissingError(
                "the dream environment needs a DreamContext, with world_model, start_page and tasks; it got a "
                f"{type(context).__name__}"
            )
        self.config = config
        self._context = context

    def environment(self) -> Environment:
        """A new dream; cheap."""
        context = self._context
        return DreamEnvironment(
            context.world_model,
            context.start_page,
            context.fidelity_floor,
            pictures=context.observation,
            rules=context.in_page or in_page,
        )

    def tasks(self, split: str, *, count: int, seed: int) -> list[Task]:
        """The tasks of the environment that is dreamed of."""
        return self._context.tasks.tasks(split, count=count, seed=seed)

    def expert(self, task: Task) -> ExpertPolicy:
        """The expert of the environment that is dreamed of."""
        return self._context.tasks.expert(task)

    async def evaluate(self, environment: Environment, trajectory: Trajectory) -> Judgement:
        """A dream has no verdict of its own: only a judge can score it."""
        return Judgement(None, why="nothing real happened in a dream; score it with a judge such as self-assess")
