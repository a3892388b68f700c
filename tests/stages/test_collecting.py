"""`dynaweb collect --by server:MODEL|human`: whole episodes with verdicts, added once, and fit for `data.demos`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server
from core_kit import Cli
from stage_kit import SMALL

from dynaweb import api
from dynaweb.commands import collecting
from dynaweb.data.demonstrations import read_demonstrations
from dynaweb.data.store import TrajectoryStore, TransitionStore
from dynaweb.errors import ConfigError, MissingError
from dynaweb.rollout.human import GivenUp, HumanPlayer
from dynaweb.types import Action, Judgement, Node, Observation, Task, Trajectory, Transition
from dynaweb.web.actions.grammar import format_action
from dynaweb_env_sites.env import SitesSource

PAGE = Observation("http://shop.test/", (Node(1, "link", "Cart"), Node(2, "textbox", "Search")), "Shop")
TASK = Task("t", "Open the cart", PAGE.url)
SETS = (*(one for one in SMALL if not one.startswith("explore.")), "explore.episodes=3", "explore.steps=8")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))


class Person:
    """Types what the scripted expert of the task would do, or the lines that it is given first."""

    def __init__(self, patch: pytest.MonkeyPatch, *, quits_at: int = 99) -> None:
        self.quits_at, self.tasks, self.output = quits_at, list[str](), list[str]()
        self._sources: list[SitesSource] = []
        draw, act = SitesSource.tasks, HumanPlayer.act

        def tasks(source: SitesSource, *rest: Any, **more: Any) -> list[Task]:
            self._sources.append(source)
            return draw(source, *rest, **more)

        async def acting(
            player: HumanPlayer, task: Task, page: Observation, history: Sequence[Action], **more: Any
        ) -> Any:
            if not history:
                self.tasks.append(task.id)
                self._expert = self._sources[-1].expert(task)
            self._page = page
            return await act(player, task, page, history, **more)

        patch.setattr(SitesSource, "tasks", tasks)
        patch.setattr(HumanPlayer, "act", acting)

    def ask(self, prompt: str) -> str:
        if len(self.tasks) >= self.quits_at:
            return "quit"
        return format_action(self._expert.act(self._page), "compact")


@pytest.mark.timeout(300)
def test_a_person_makes_demonstrations_until_they_give_up_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, out = Person(monkeypatch, quits_at=2), tmp_path / "run"
    store = tmp_path / "mine.jsonl.gz"
    options: dict[str, Any] = {"by": "human", "store": store, "overrides": SETS, "ask": person.ask}
    first = api.demonstrate("dynaweb", out=out, say=person.output.append, only="checked", **options)
    assert (first.metrics["played"], first.metrics["added"], first.metrics["usable"]) == (1, 1, 1)
    (one,) = TrajectoryStore(store)
    assert one.facts.verdict == Judgement(1.0, why=one.facts.verdict.why if one.facts.verdict else "")
    assert one.source == "real" and one.end == "stop" and "Goal: " in person.output[0]
    person.quits_at = 99
    again = api.demonstrate("dynaweb", out=tmp_path / "two", say=person.output.append, **options)
    assert (again.metrics["played"], again.metrics["episodes"]) == (2, 3)
    assert len({episode.task.id for episode in TrajectoryStore(store)}) == 3
    nothing = api.demonstrate("dynaweb", out=tmp_path / "three", say=person.output.append, **options)
    assert (nothing.metrics["played"], nothing.metrics["episodes"]) == (0, 3)
    assert len(read_demonstrations(str(store)).episodes) == 3
    tuned = api.sft("dynaweb", overrides=[*SMALL, f"data.demos={store}"], out=tmp_path / "sft")
    assert tuned.metrics["demonstrations"] == 3


@pytest.mark.timeout(300)
def test_a_model_behind_a_server_makes_demonstrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    with chat_server("REASON: I give up.\nACTION: stop [no]") as server:
        sets = (*SETS, f"policy.server.base_url={server.url}", "policy.max_new_tokens=64", "explore.temperature=0.5")
        result = api.demonstrate("dynaweb", by="server:gpt-x", overrides=sets, out=tmp_path / "run")
        checked = api.demonstrate(
            "dynaweb", by="server:gpt-x", only="checked", overrides=sets, out=tmp_path / "checked"
        )
    assert (result.metrics["played"], result.metrics["added"], result.metrics["requests"]) == (3, 3, 3)
    assert server.requests[0]["model"] == "gpt-x" and server.requests[0]["temperature"] == 0.5
    episodes = list(TrajectoryStore(tmp_path / "run" / "trajectories" / "collected.jsonl.gz"))
    assert [step.reasoning for one in episodes for step in one.steps] == ["I give up."] * 3
    assert all(one.facts.verdict is not None and one.facts.verdict.score == 0.0 for one in episodes)
    assert (checked.metrics["played"], checked.metrics["added"]) == (3, 0)
    with pytest.raises(ConfigError, match="3 x it failed"):
        read_demonstrations(str(tmp_path / "run"))

    async def lenient(judge: Any, batch: Sequence[Trajectory]) -> list[Trajectory]:
        return [one.scored(Judgement(1.0 if at else 0.0), 1.0) for at, one in enumerate(batch)]

    monkeypatch.setattr(collecting, "judge_all", lenient)
    with chat_server("REASON: I give up.\nACTION: stop [no]") as server:
        sets = (*SETS, f"policy.server.base_url={server.url}", "policy.max_new_tokens=64")
        judged = api.demonstrate("dynaweb", by="server:x", only="judged", overrides=sets, out=tmp_path / "judged")
    assert (judged.metrics["played"], judged.metrics["added"]) == (3, 2)


async def act(*lines: str) -> tuple[Any, list[str]]:
    output: list[str] = []
    answers = iter(lines)

    def ask(prompt: str) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    return await HumanPlayer(output.append, ask).act(TASK, PAGE, [], seed=0), output


async def test_a_persons_lines_are_actions_reasons_or_asked_for_again() -> None:
    decision, output = await act("", "fly", "click 9", "# It is there.", "click 1")
    assert decision.action == Action("click", 1, target_role="link", target_name="Cart")
    assert (decision.reasoning, decision.reply) == ("It is there.", "click 1")
    assert output[0].startswith("\nGoal: Open the cart") and sum(text.startswith("! ") for text in output) == 2
    for lines in (["quit"], [], ["# a thought"]):
        with pytest.raises(GivenUp):
            await act(*lines)


def test_what_cannot_be_collected_is_refused_before_anything_is_played(tmp_path: Path, warm_cli: Cli) -> None:
    for by in ("nobody", "server:", "policy"):
        with pytest.raises(ConfigError, match="no player is called"):
            api.demonstrate("dynaweb", by=by, overrides=SETS, out=tmp_path / "a")
    with pytest.raises(ConfigError, match=r"--only chekced is not known.*checked"):
        api.demonstrate("dynaweb", by="human", only="chekced", overrides=SETS, out=tmp_path / "b")
    TransitionStore.write(tmp_path / "t.jsonl.gz", [Transition(PAGE, Action("wait"), PAGE)])
    with pytest.raises(ConfigError, match="holds transitions"):
        api.demonstrate("dynaweb", by="human", store=tmp_path / "t.jsonl.gz", overrides=SETS, out=tmp_path / "c")
    refused = warm_cli("collect", "--by", "random", "--only", "checked", "--out", str(tmp_path / "d"))
    assert refused.returncode == 2 and "--only is for whole episodes" in refused.stderr


def test_a_server_without_a_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(MissingError, match="OPENAI_API_KEY"):
        api.demonstrate("dynaweb", by="server:x", overrides=SETS, out=tmp_path / "a")
