"""The suite for environments that bring tasks of their own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import pytest

from dynaweb.config.sections import Web
from dynaweb.errors import MissingError
from dynaweb.hookspecs import Kind
from dynaweb.protocols import Environment, PluginContext, TaskSource
from dynaweb.testing.suite import PluginSuite, numbered
from dynaweb.types import Action, Judgement, Observation, Step, StepResult, Task, Trajectory

JUNK_ACTIONS = (
    Action("click", 10_000, target_role="button", target_name="no such element"),
    Action("type", 10_000, "text", True, target_role="textbox", target_name="no such element"),
    Action("select", 10_000, "no such option", target_role="combobox", target_name="no such element"),
    Action("tab_focus", index=99),
    Action("goto", text="file:///etc/passwd"),
    Action("goto", text="not an address \x00"),
)
"""Actions that no page allows."""
LONGEST = 50
"""Steps after which an expert's plan counts as endless."""


class EnvironmentSuite(PluginSuite):
    """Tasks by seed, pages with numbers, refusals with a message, a working expert, closing twice."""

    kind: ClassVar[Kind] = "env"
    split: ClassVar[str] = "train"

    def context(self, **changes: Any) -> PluginContext:
        """The browser's settings, as a run gives them."""
        services = {"web": Web(), "max_best_steps": 5}
        return super().context(**{"services": services, **changes})

    def test_it_brings_tasks(self) -> None:
        """The plugin says so, and its object offers them."""
        assert "tasks" in self.plugin.spec.capabilities, "an environment with tasks says so: capabilities={'tasks'}"
        assert isinstance(self.build(), TaskSource)

    def test_tasks_depend_on_the_seed_alone(self) -> None:
        """The same seed gives the same tasks; ids are distinct."""
        first, second = (self.build().tasks(self.split, count=6, seed=3) for _ in range(2))
        assert first == second
        assert len(first) >= 1
        ids = [task.id for task in first]
        assert len(set(ids)) == len(ids), f"tasks share an id: {', '.join(ids)}"
        assert all(task.intent and task.start_url for task in first)

    def test_splits_have_different_tasks(self) -> None:
        """Nothing that is evaluated was trained on."""
        source = self.build()
        train = {task.id for task in source.tasks("train", count=6, seed=3)}
        test = {task.id for task in source.tasks("test", count=6, seed=3)}
        assert not train & test

    def test_a_reset_shows_the_same_page(self) -> None:
        """Also after something was done."""

        async def work(place: Environment, task: Task) -> tuple[Observation, Observation]:
            first = await place.reset(task, 5)
            await place.step(Action("scroll", text="down"))
            return first, await place.reset(task, 5)

        first, again = self._in_place(work)
        assert first == again
        assert numbered(first.nodes)

    @pytest.mark.parametrize("action", JUNK_ACTIONS, ids=lambda action: f"{action.kind} {action.text}"[:20])
    def test_junk_actions_are_refused_with_a_message(self, action: Action) -> None:
        """A refusal is an error text, not an exception, and the episode goes on."""

        async def work(place: Environment, task: Task) -> tuple[StepResult, Observation]:
            await place.reset(task, 5)
            return await place.step(action), await place.reset(task, 5)

        result, _ = self._in_place(work)
        assert isinstance(result, StepResult)
        assert result.error, f"{action.kind} {action.text!r} was done"
        assert not result.done

    def test_the_expert_succeeds_by_the_environments_own_check(self) -> None:
        """And an episode in which nothing is done does not."""
        source = self.build()
        task = source.tasks(self.split, count=1, seed=3)[0]
        try:
            source.expert(task)
        except MissingError:
            pytest.skip("no expert")
        self._close_after(source, self._judged(source, task))

    def test_closing_an_environment_twice_is_allowed(self) -> None:
        """As often as anybody likes."""

        async def work(place: Environment, task: Task) -> None:
            await place.reset(task, 5)
            await place.close()
            await place.close()

        self._in_place(work)

    async def _judged(self, source: Any, task: Task) -> None:
        solved = await _episode(source, task, source.expert(task).act)
        assert (solved.score or 0) >= 0.5, solved.why
        idle = await _episode(source, task, lambda page: Action("stop"))
        assert (idle.score or 0) < 0.5, "an episode in which nothing is done counts as a success"

    def _in_place(self, work: Callable[[Environment, Task], Coroutine[Any, Any, Any]]) -> Any:
        source = self.build()
        task = source.tasks(self.split, count=1, seed=3)[0]

        async def inside() -> Any:
            place = source.environment()
            try:
                return await work(place, task)
            finally:
                await place.close()

        return self._close_after(source, inside())

    def _close_after(self, source: Any, work: Coroutine[Any, Any, Any]) -> Any:
        import inspect

        async def inside() -> Any:
            try:
                return await work
            finally:
                close = getattr(source, "close", None)
                if close is not None and inspect.iscoroutine(found := close()):
                    await found

        return self.run(inside())


async def _episode(source: Any, task: Task, act: Callable[[Observation], Action]) -> Judgement:
    place = source.environment()
    try:
        page, steps = await place.reset(task, 5), []
        for _ in range(LONGEST):
            action = act(page)
            steps.append(Step(page, action))
            result = await place.step(action)
            page = result.observation
            if result.done or action.kind == "stop":
                break
        played = Trajectory("t", task, tuple(steps), page, "real", "stop")
        judgement: Judgement = await source.evaluate(place, played)
        return judgement
    finally:
        await place.close()
