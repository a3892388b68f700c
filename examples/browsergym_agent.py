"""A policy that dynaweb trained, as an agent of BrowserGym and AgentLab: on other people's benchmarks, by their rules.

    python examples/browsergym_agent.py runs/mine browsergym/miniwob.click-test      # with BrowserGym's own loop
    python examples/browsergym_agent.py me/web-agent browsergym/webarena.310         # weights of the hub

With AgentLab: `make_study(agent_args=[DynawebAgentArgs(policy="runs/mine")], benchmark="webarena")`.

The agent reads BrowserGym's accessibility tree in the view that the policy was trained with, asks the policy greedily
in its own prompt format, and says its action in BrowserGym's calls. A reply without an action costs a step (`noop()`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dynaweb import resolve
from dynaweb.commands.push import policy_folder
from dynaweb.pipeline.models import Models
from dynaweb.plugin.registry import current
from dynaweb.rollout.agents import ModelPolicy
from dynaweb.runs import RunFolder
from dynaweb.runs.seeding import derive
from dynaweb.serve.environment import LoopThread
from dynaweb.types import Action, Observation, Tab, Task
from dynaweb.web.actions.grammar import resolve as resolve_action
from dynaweb.web.page.tree import read_page
from dynaweb.web.page.view import VIEWS
from dynaweb_env_browsergym.actions import call_of

try:
    from agentlab.agents.agent_args import AgentArgs
except ImportError:  # BrowserGym alone, or neither
    try:
        from browsergym.experiments.loop import AbstractAgentArgs as AgentArgs
    except ImportError:
        AgentArgs = object
try:
    from browsergym.experiments.agent import Agent
except ImportError:
    Agent = object

NOTHING = "noop()"
KEPT = (
    *("goal", "url", "open_pages_urls", "open_pages_titles", "active_page_index", "axtree_object"),
    *("focused_element_bid", "last_action", "last_action_error"),
)
"""What the agent reads of an observation; the rest, screenshots among it, is not recorded."""


class DynawebAgent(Agent):
    """Plays one episode; the policy is loaded once for all of them."""

    def __init__(self, policy: str, recipe: str = "dynaweb", view: str = "full") -> None:
        """`policy` is the folder of a run, a folder of weights, or a name of the hub; a run brings its own recipe.

        `view` is the one of the environment that it was trained in: `full` (webarena) or `compact` (sites).
        """
        self._player, self._loop = _loaded(policy, recipe)
        self._view = VIEWS[view]
        self._history: list[Action] = []
        self._bids: dict[str, str] = {}

    @property
    def action_set(self) -> Any:
        """BrowserGym's calls that the agent makes; typing with Enter is two of them."""
        from browsergym.core.action.highlevel import HighLevelActionSet

        return HighLevelActionSet(["chat", "infeas", "bid", "nav", "tab"], multiaction=True, strict=False)

    def obs_preprocessor(self, obs: dict[str, Any]) -> dict[str, Any]:
        """What `get_action` reads of BrowserGym's observation."""
        return {name: obs[name] for name in KEPT if name in obs}

    def get_action(self, obs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The next call, and what the policy thought."""
        page = self._page(obs)
        task = Task("browsergym", str(obs["goal"]), page.url)
        decision = self._loop.run(self._player.act(task, page, self._history, seed=len(self._history)))
        said = {"think": decision.reasoning, "extra_info": {"reply": decision.reply, "error": decision.error}}
        action = NOTHING if decision.action is None else resolve_action(decision.action, page)
        if isinstance(action, str):
            return NOTHING, said
        self._history.append(action)
        return call_of(
            action, self._bid(page, action), focused=str(obs.get("focused_element_bid") or "")
        ) or NOTHING, said

    def _page(self, obs: dict[str, Any]) -> Observation:
        nodes = obs["axtree_object"]["nodes"]
        self._bids = {
            str(node["backendDOMNodeId"]): str(node["browsergym_id"])
            for node in nodes
            if node.get("browsergym_id") and "backendDOMNodeId" in node
        }
        tree = read_page(nodes)
        viewed = self._view(tree.nodes)
        current_tab = int(obs["active_page_index"][0])
        pairs = zip(obs["open_pages_titles"], obs["open_pages_urls"], strict=True)
        tabs = tuple(Tab(title, url, at == current_tab) for at, (title, url) in enumerate(pairs))
        several = tabs if len(tabs) > 1 else ()
        notice = str(obs.get("last_action_error") or "")
        return Observation(obs["url"], viewed.nodes, tree.title, several, notice, viewed.truncated)

    def _bid(self, page: Observation, action: Action) -> str:
        node = page.node(action.target) if action.target is not None else None
        return self._bids.get((node.ref or "").rpartition(":")[2], "") if node is not None else ""


@dataclass
class DynawebAgentArgs(AgentArgs):  # type: ignore[misc, valid-type]
    """What AgentLab and BrowserGym make the agent from, in each process of a study."""

    agent_name: str = "dynaweb"
    policy: str = ""
    recipe: str = "dynaweb"
    view: str = "full"

    def make_agent(self) -> DynawebAgent:
        """The agent of one episode."""
        return DynawebAgent(self.policy, self.recipe, self.view)

    def set_reproducibility_mode(self) -> None:
        """It is greedy always."""


@lru_cache(maxsize=2)
def _loaded(policy: str, recipe: str) -> tuple[ModelPolicy, LoopThread]:
    """The player of a policy, and the event loop that its engine belongs to."""
    folder = Path(policy)
    if (folder / "recipe.json").is_file():
        settings, weights = RunFolder(folder).recipe(), policy_folder(folder)
    else:
        settings, weights = resolve(recipe, model=policy), None
    models = Models(settings, current(), lambda *labels: derive(settings.run.seed, *labels), lambda engine: None)
    loaded = models.load(weights)
    longest = settings.policy.max_new_tokens
    player = ModelPolicy(models.engine(loaded), loaded.format, temperature=0.0, max_new_tokens=longest)
    return player, LoopThread("dynaweb-agent")


def main() -> None:
    """Play a task of BrowserGym with its own loop, into `results/`."""
    from browsergym.experiments import EnvArgs, ExpArgs

    if len(sys.argv) != 3:
        sys.exit("usage: python browsergym_agent.py RUN|WEIGHTS TASK, such as runs/mine browsergym/miniwob.click-test")
    policy, task = sys.argv[1:]
    experiment = ExpArgs(EnvArgs(task.removeprefix("browsergym/"), max_steps=30), DynawebAgentArgs(policy=policy))
    experiment.prepare("results")
    experiment.run()


if __name__ == "__main__":
    main()
