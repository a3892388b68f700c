"""The agent of `examples/`, fed with observations as BrowserGym makes them; BrowserGym itself is not needed."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT
from own_kit import chat_model

from dynaweb.rollout.agents import Decision
from dynaweb.types import Action, Observation, Task

MODULE = runpy.run_path(str(ROOT / "examples" / "browsergym_agent.py"))


def node(number: int, role: str, name: str, *children: int, **more: Any) -> dict[str, Any]:
    values = {"role": {"value": role}, "name": {"value": name}, "childIds": [str(child) for child in children]}
    return {"nodeId": str(number), "backendDOMNodeId": number, "properties": [], **values, **more}


NODES = [
    node(1, "RootWebArea", "Shop", 2, 3, 4, 5),
    node(2, "button", "Pay", browsergym_id="a4"),
    node(3, "textbox", "Name", browsergym_id="a5"),
    node(4, "link", "Apart"),
    node(5, "combobox", "Size", browsergym_id="b1"),
]


def obs(**changes: Any) -> dict[str, Any]:
    values = {
        "goal": "Pay",
        "url": "http://x.test/",
        "open_pages_urls": ["http://x.test/"],
        "open_pages_titles": ["Shop"],
        "active_page_index": [0],
        "axtree_object": {"nodes": NODES},
        "focused_element_bid": "a5",
        "last_action": "",
        "last_action_error": "",
        "screenshot": object(),
    }
    return {**values, **changes}


class Script:
    """A player that does what it is told to, and remembers what it saw."""

    def __init__(self, action: Action | None) -> None:
        self.action, self.seen = action, list[tuple[Task, Observation, list[Action]]]()

    async def act(self, task: Task, page: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        self.seen.append((task, page, list(history)))
        named = {node.name: node.id for node in page.nodes}
        action = self.action
        if action is not None and action.target_name:
            action = Action(action.kind, named[action.target_name], action.text, enter=action.enter)
        return Decision(action, reasoning="why", reply="words", error="" if action else "no action")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    loop = MODULE["LoopThread"]()
    agent_class = MODULE["DynawebAgent"]

    def make(action: Action | None) -> tuple[Any, Script]:
        player = Script(action)
        monkeypatch.setitem(agent_class.__init__.__globals__, "_loaded", lambda policy, recipe: (player, loop))
        return agent_class("anything"), player

    yield make
    loop.close()


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (Action("click", target_name="Pay"), "click('a4')"),
        (Action("type", text="Ann", target_name="Name"), "fill('a5', 'Ann')"),
        (Action("type", text="it's", enter=True, target_name="Name"), "fill('a5', \"it's\")\npress('a5', 'Enter')"),
        (Action("hover", target_name="Pay"), "hover('a4')"),
        (Action("press", text="Enter"), "press('a5', 'Enter')"),
        (Action("scroll", text="down"), "scroll(0, 500)"),
        (Action("goto", text="http://x.test/b"), "goto('http://x.test/b')"),
        (Action("go_back"), "go_back()"),
        (Action("new_tab"), "new_tab()"),
        (Action("stop", text="4 EUR"), "send_msg_to_user('4 EUR')"),
        # An element that BrowserGym has no id for, one that is not there, and no action at all.
        (Action("click", target_name="Apart"), "noop()"),
        (Action("click", 99), "noop()"),
        (None, "noop()"),
    ],
    ids=repr,
)
def test_every_action_is_said_in_browsergyms_calls(scripted: Any, action: Action | None, call: str) -> None:
    agent, player = scripted(action)
    said, info = agent.get_action(agent.obs_preprocessor(obs()))
    assert said == call
    assert info["think"] == "why" and info["extra_info"]["reply"] == "words"
    ((task, page, history),) = player.seen
    assert (task.intent, page.url, page.title, history) == ("Pay", "http://x.test/", "Shop", [])


def test_history_tabs_and_errors_reach_the_policy(scripted: Any) -> None:
    agent, player = scripted(Action("click", target_name="Pay"))
    agent.get_action(obs())
    agent.get_action(
        obs(
            open_pages_urls=["http://x.test/", "http://x.test/b"],
            open_pages_titles=["Shop", "B"],
            active_page_index=[1],
            last_action_error="TimeoutError: no",
        )
    )
    _, page, history = player.seen[1]
    assert [action.kind for action in history] == ["click"] and page.notice == "TimeoutError: no"
    assert [(tab.title, tab.current) for tab in page.tabs] == [("Shop", False), ("B", True)]
    assert "screenshot" not in agent.obs_preprocessor(obs())


def test_weights_are_loaded_once_and_played_greedily(tmp_path: Path) -> None:
    arguments = MODULE["DynawebAgentArgs"](policy=str(chat_model(tmp_path / "model")))
    first, second = arguments.make_agent(), arguments.make_agent()
    answers = [agent.get_action(obs()) for agent in (first, second)]
    # A random model says no action.
    assert answers[0] == answers[1] and answers[0][0] == "noop()" and answers[0][1]["extra_info"]["error"]
    assert first._player is second._player
    first._loop.close()
