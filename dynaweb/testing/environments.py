"""The suite for environments that bring tasks of their own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import pytest

from dynaweb.config.sections import Web
from dynaweb.hookspecs import Kind
from dynaweb.protocols import Environment, EnvironmentContext, TaskSource
from dynaweb.testing.playing import (
    JUNK_ACTIONS,
    copies,
    described,
    difference,
    do_something,
    first_page,
    has_expert,
    idle,
    look,
    play,
    success,
    telling_tasks,
)
from dynaweb.testing.suite import SEED, PluginSuite, numbered
from dynaweb.types import Action, Judgement, Observation, StepResult, Task


class EnvironmentSuite(PluginSuite):
    """Tasks by seed, clean resets, episodes side by side, refusals with a message, a working expert, closing twice."""

    kind: ClassVar[Kind] = "env"
    split: ClassVar[str] = "train"

    def context(self, **changes: Any) -> EnvironmentContext:
        """The browser's settings, as a run gives them."""
        return EnvironmentContext(**{"seed": SEED, "web": Web(), "max_best_steps": 5, **changes})

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
        """Nothing that is evaluated was trained on. An environment without splits says so in `xfail`."""
        source = self.build()
        train, test = (source.tasks(split, count=6, seed=3) for split in ("train", "test"))
        shared = {task.id for task in train} & {task.id for task in test}
        assert not shared, f"tasks of both train and test: {', '.join(sorted(shared))}"
        again = self._close_after(source, copies(source, train, test))
        # Some templates have nothing that differs; that most tasks are the same is no chance.
        assert 2 * len(again) <= len(test), (
            f"{len(again)} of {len(test)} test tasks are tasks of train under other ids, with the same words, check "
            f"and first page: {', '.join(task.id for task in again)}"
        )

    def test_a_reset_shows_the_same_page(self) -> None:
        """Also after something was done."""

        async def work(environment: Environment, task: Task) -> Observation:
            first = await environment.reset(task, 5)
            await environment.step(Action("scroll", text="down"))
            page = await environment.reset(task, 5)
            assert page == first, f"after a scroll `reset` shows another page than at first: {difference(first, page)}"
            done = await do_something(environment, page)
            page = await environment.reset(task, 5)
            assert page == first, (
                f"after {described(done)}, `reset` of the same task shows another page than at first: "
                f"{difference(first, page)}"
            )
            return first

        first = self._in_environment(work)
        assert numbered(first.nodes), "elements are not numbered 1..N in page order"

    def test_a_reset_undoes_what_the_expert_did(self) -> None:
        """Also what the first page does not show: nobody succeeds by what was done in the episode before."""

        async def work(source: Any, environment: Environment, task: Task) -> None:
            first = await environment.reset(task, 5)
            await play(source, environment, task, first, source.expert(task).act)
            again = await environment.reset(task, 5)
            assert first == again, f"after the expert's episode `reset` shows another page: {difference(first, again)}"
            assert not success(await play(source, environment, task, again, idle)), (
                f"after the expert's episode and a `reset`, an episode of {task.id} in which nothing is done counts as "
                "a success: `reset` keeps what was done"
            )

        self._with_experts(work)

    def test_a_reset_shows_the_page_of_its_own_task(self) -> None:
        """One object plays one task after the other, and shows what a new object shows."""

        async def work(source: Any, environment: Environment, task: Task) -> tuple[Observation, Observation]:
            first = await environment.reset(task, 5)
            for other in source.tasks(self.split, count=6, seed=3):
                expected = await first_page(source, other)
                if expected != first:
                    break
            return expected, await environment.reset(other, 5)

        expected, page = self._with_source(work)
        assert page == expected, (
            "`reset` to another task shows another page than a new environment does for that task: "
            f"{difference(expected, page)}. Does something of the task before stay?"
        )

    def test_two_environments_share_nothing(self) -> None:
        """Episodes are played side by side; each sees its own task and what was done in itself."""

        async def work(source: Any, environment: Environment, task: Task) -> None:
            second = source.tasks(self.split, count=2, seed=3)[-1]
            other = source.environment()
            try:
                await environment.reset(task, 5)
                before = await look(environment)
                page = await other.reset(second, 5)
                between = await look(environment)
                assert between == before, (
                    "while one environment is in use, `reset` of a second one changes its page: "
                    f"{difference(before, between)}"
                )
                done = await do_something(other, page)
                after = await look(environment)
                assert after == before, (
                    f"{described(done)} in one environment changes another: {difference(before, after)}"
                )
            finally:
                await other.close()

        self._with_source(work)

    def test_an_episode_beside_the_experts_does_not_succeed_by_it(self) -> None:
        """Two environments play one task; the one in which nothing is done fails, the expert's succeeds."""

        async def work(source: Any, environment: Environment, task: Task) -> None:
            other = source.environment()
            try:
                page, other_page = await environment.reset(task, 5), await other.reset(task, 5)
                solved = await play(source, environment, task, page, source.expert(task).act)
                assert not success(await play(source, other, task, other_page, idle)), (
                    f"what the expert of {task.id} does in one environment counts as done in another"
                )
            finally:
                await other.close()
            assert success(solved), f"with a second environment open, the expert fails: {solved.why}"

        self._with_experts(work)

    @pytest.mark.parametrize("action", JUNK_ACTIONS, ids=lambda action: f"{action.kind} {action.text}"[:20])
    def test_junk_actions_are_refused_with_a_message(self, action: Action) -> None:
        """A refusal is an error text, not an exception, and the episode goes on."""

        async def work(environment: Environment, task: Task) -> tuple[StepResult, Observation]:
            await environment.reset(task, 5)
            return await environment.step(action), await environment.reset(task, 5)

        result, _ = self._in_environment(work)
        assert isinstance(result, StepResult)
        assert result.error, f"{action.kind} {action.text!r} was done"
        assert not result.done

    def test_the_expert_succeeds_by_the_environments_own_check(self) -> None:
        """And an episode in which nothing is done does not."""
        source = self.build()
        task = source.tasks(self.split, count=1, seed=3)[0]
        if not has_expert(source, task):
            pytest.skip("no expert")
        self._close_after(source, self._judged(source, task))

    def test_closing_an_environment_twice_is_allowed(self) -> None:
        """As often as anybody likes."""

        async def work(environment: Environment, task: Task) -> None:
            await environment.reset(task, 5)
            await environment.close()
            await environment.close()

        self._in_environment(work)

    def _with_experts(self, work: Callable[[Any, Environment, Task], Coroutine[Any, Any, None]]) -> None:
        """Do `work` with a few tasks that an expert can play."""

        async def some(source: Any, environment: Environment, task: Task) -> None:
            tasks = telling_tasks(source, self.split)
            if not tasks:
                pytest.skip("no expert")
            for one in tasks:
                await work(source, environment, one)

        self._with_source(some)

    async def _judged(self, source: Any, task: Task) -> None:
        solved = await _episode(source, task, source.expert(task).act)
        assert success(solved), solved.why
        lazy = await _episode(source, task, idle)
        assert not success(lazy), "an episode in which nothing is done counts as a success"

    def _in_environment(self, work: Callable[[Environment, Task], Coroutine[Any, Any, Any]]) -> Any:
        return self._with_source(lambda source, environment, task: work(environment, task))

    def _with_source(self, work: Callable[[Any, Environment, Task], Coroutine[Any, Any, Any]]) -> Any:
        source = self.build()
        task = source.tasks(self.split, count=1, seed=3)[0]

        async def inside() -> Any:
            environment = source.environment()
            try:
                return await work(source, environment, task)
            finally:
                await environment.close()

        return self._close_after(source, inside())

    def _close_after(self, source: Any, work: Coroutine[Any, Any, Any]) -> Any:
        import inspect

        async def inside() -> Any:
            try:
                return await work
            finally:
                close = getattr(source, "close", None)
                if close is not None and inspect.iscoroutine(closing := close()):
                    await closing

        return self.run(inside())


async def _episode(source: Any, task: Task, act: Callable[[Observation], Action]) -> Judgement:
    environment = source.environment()
    try:
        return await play(source, environment, task, await environment.reset(task, 5), act)
    finally:
        await environment.close()
