"""Plugins that look right and are wrong: the conformance suites catch each, and say what is wrong with it.

Each is a package of `dynaweb new plugin` in which a few lines were replaced; without that it passes the same tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from core_kit import PackageMaker

from dynaweb.scaffold import KINDS, new_plugin
from dynaweb.testing import EnvironmentSuite, OptimizerSuite, RewardSuite, WorldModelSuite
from dynaweb.testing.suite import PluginSuite
from dynaweb.types import Action

pytest_plugins = ["dynaweb.testing.fixtures"]

SUITES = {"env": EnvironmentSuite, "world-model": WorldModelSuite, "reward": RewardSuite, "optimizer": OptimizerSuite}
Changes = Sequence[tuple[str, str]]
Make = Callable[..., PluginSuite]

RESET = 'self.lamps = dict.fromkeys(task.meta["lamps"], False)'
KEPT = f'if list(self.lamps) != task.meta["lamps"]:\n            {RESET}'
STATUS = "f\"On: {', '.join(shining) or 'none'}\""
DRAW = 'rng = random.Random(f"{split} {seed} {number}")\n        lamps = rng.sample(ROOMS[split]'
HEADING = 'rows = [*menu, ("heading", action.target_name)]'
WRONG = 'return Prediction(None, error=f"{action.kind} names no element")'
UNFINISHED = "if trajectory.final is None:"
VERDICT = "return Judgement(score, share, "
GROUPS = "known: dict[str, list[float]] = {}"
RUNS = "def runs(groups, at): return sum(groups[k] != groups[k + 1] for k in range(at))"
MASK = "logp_RT = torch.where("

MUTANTS: tuple[tuple[str, str, tuple[Any, ...], Changes, str], ...] = (
    (
        "env",
        "a_reset_shows_the_same_page",
        (),
        [(RESET, KEPT)],
        r"after click of button '\w+', `reset` of the same task shows another page .* status 'On: ",
    ),
    (
        "env",
        "a_reset_undoes_what_the_expert_did",
        (),
        [(RESET, KEPT), (STATUS, '"Some are on"')],
        "counts as a success: `reset` keeps what was done",
    ),
    (
        "env",
        "two_environments_share_nothing",
        (),
        [("return _Lamps()", 'return self.__dict__.setdefault("place", _Lamps())')],
        "`reset` of a second one changes its page: element",
    ),
    (
        "env",
        "two_environments_share_nothing",
        (),
        [("self.lamps: dict[str, bool] = {}", "pass"), (RESET, f"type({RESET[:4]}){RESET[4:]}")],
        "`reset` of a second one changes its page: element",
    ),
    (
        "env",
        "two_environments_share_nothing",
        (),
        [
            ("shining = [", "ON.update(self.lamps) if self.used else None\n        shining = ["),
            (
                "for name, on in self.lamps.items() if on]\n        rows",
                "for name, on in ON.items() if on]\n        rows",
            ),
            ("self.lamps[node.name] =", "self.used = True\n        self.lamps[node.name] ="),
            ("self.lamps: dict[str, bool] = {}", "self.lamps: dict[str, bool] = {}\n        self.used = False"),
            ("class _Expert", "ON = {}\n\n\nclass _Expert"),
        ],
        r"click of button '\w+' in one environment changes another: element 6 is status",
    ),
    (
        "env",
        "an_episode_beside_the_experts_does_not_succeed_by_it",
        (),
        [
            (RESET, f"{RESET}\n        self.lamps = ON.setdefault(task.id, self.lamps)"),
            ("class _E", "ON = {}\nclass _E"),
        ],
        "what the expert of train:3:[0-9]+ does in one environment counts as done in another",
    ),
    (
        "env",
        "a_reset_shows_the_page_of_its_own_task",
        (),
        [(RESET, f"if not self.lamps:\n            {RESET}")],
        "than a new environment does for that task: element 2 is button",
    ),
    (
        "env",
        "splits_have_different_tasks",
        (),
        [(DRAW, DRAW.replace("{split} ", "").replace("ROOMS[split]", 'ROOMS["train"]'))],
        "6 of 6 test tasks are tasks of train under other ids",
    ),
    (
        "world-model",
        "no_action_is_an_exception",
        (Action("scroll", text="down"),),
        [(WRONG, "raise ValueError(action.kind)")],
        "scroll of no element: `predict` raises ValueError: scroll; that belongs into Prediction.error",
    ),
    (
        "world-model",
        "no_action_is_an_exception",
        (Action("stop", text="12.50"),),
        [
            ("if not action.target_name:", 'if action.target is None and action.kind != "stop":'),
            (HEADING, "rows = 1 / 0"),
        ],
        "stop of no element: `predict` raises ZeroDivisionError",
    ),
    (
        "world-model",
        "a_prediction_depends_on_its_own_question_alone",
        (),
        [(HEADING, f'{HEADING}\n        rows.append(("text", KEPT.get("goal", "")))\n        KEPT["goal"] = goal')],
        "does something of the former call stay in the object or its class",
    ),
    (
        "world-model",
        "a_prediction_depends_on_its_own_question_alone",
        (),
        [
            (
                HEADING,
                f'{HEADING}\n        rows.append(("text", str(KEPT.get("before"))))\n        KEPT["before"] = history',
            )
        ],
        "one question gets two answers",
    ),
    (
        "reward",
        "another_episode_of_the_same_task_is_judged_by_itself",
        (),
        [
            (
                UNFINISHED,
                f"if trajectory.task.id in KEPT:\n            return KEPT[trajectory.task.id]\n        {UNFINISHED}",
            ),
            (VERDICT, "return KEPT.setdefault(trajectory.task.id, Judgement(score, share, "),
            ('on the last page")', 'on the last page"))'),
        ],
        "is a verdict kept by the id of its task",
    ),
    (
        "reward",
        "a_judge_stays_as_it_is",
        (),
        [
            (UNFINISHED, f"self.calls = getattr(self, 'calls', 0) + 1\n        {UNFINISHED}"),
            (VERDICT, "return Judgement(0.0) if self.calls > 4 else Judgement(score, share, "),
        ],
        r"call \d+ of one object gives \(0.0, None\), a new object",
    ),
    (
        "optimizer",
        "groups_need_not_lie_together",
        (),
        [
            (GROUPS, f"groups = [f'{{g}} {{runs(groups, at)}}' for at, g in enumerate(groups)]\n        {GROUPS}"),
            ("class MineO", f"{RUNS}\n\n\nclass MineO"),
        ],
        "do only neighbours form a group",
    ),
    (
        "optimizer",
        "what_is_given_is_not_changed",
        (),
        [(MASK, f"batch.advantage_N.mul_(0.5)\n        {MASK}")],
        "`loss` changes what it is given in place: advantage_N",
    ),
    (
        "optimizer",
        "what_is_given_is_not_changed",
        (),
        [(GROUPS, f"rewards[:] = [reward or 0.0 for reward in rewards]\n        {GROUPS}")],
        "`advantages` changes the rewards that it is given",
    ),
    (
        "optimizer",
        "a_trajectory_without_agent_tokens_does_no_harm",
        (),
        [(".clamp(min=1)", "")],
        "the loss is nan with 0 agent tokens in trajectory 0: is `tokens_N` clamped",
    ),
)
NAMES = [f"{kind}-{test}-{at}" for at, (kind, test, *_) in enumerate(MUTANTS, 1)]
RIGHT = sorted({(kind, test, given) for kind, test, given, *_ in MUTANTS}, key=str)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A suite about a new plugin of a kind, some lines of which were replaced."""

    def made(kind: str, changes: Changes = ()) -> PluginSuite:
        sources = {file.name: file.read_text() for file in new_plugin(kind, "mine", tmp_path / "package")}
        names: dict[str, Any] = {"KEPT": {}, "__name__": "mine"}
        exec(sources["__init__.py"], names)
        exec(changed(sources[f"{KINDS[kind].file}.py"], changes), names)
        (spec,) = next(value for key, value in names.items() if key.startswith("dynaweb_"))()
        make_it = names[spec.target.split(":")[1]]
        suite = type("TestMine", (SUITES[kind],), {"name": "mine", "plugin": SimpleNamespace(spec=spec)})()
        suite.build = lambda context=None: make_it(spec.config(), context or suite.context())
        return suite  # type: ignore[no-any-return]

    return made


def changed(text: str, changes: Changes) -> str:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(("kind", "test", "given", "changes", "message"), MUTANTS, ids=NAMES)
def test_a_wrong_plugin_is_caught(
    kind: str, test: str, given: tuple[Any, ...], changes: Changes, message: str, make: Make
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=message):
        getattr(make(kind, changes), f"test_{test}")(*given)


@pytest.mark.parametrize(("kind", "test", "given"), RIGHT, ids=lambda value: value if isinstance(value, str) else "")
def test_the_right_one_is_not(kind: str, test: str, given: tuple[Any, ...], make: Make) -> None:
    getattr(make(kind), f"test_{test}")(*given)


HOOK = """
from dynaweb.hookspecs import PluginSpec, hookimpl
from pydantic import BaseModel


class Config(BaseModel):
    size: int = 3


@hookimpl
def dynaweb_world_models():
    return [PluginSpec("dice", "dice_parts:Dice", Config, "throws dice")]
"""
DICE = """
from zlib import crc32

from dynaweb.types import Prediction


class Dice:
    def __init__(self, config, context):
        print("what is printed disturbs nothing")
        self.size = config.size

    async def predict(self, observation, action, *, seed, history=(), goal=""):
        thrown = {number}
        return Prediction(observation) if thrown % self.size else Prediction(None, error="unlucky")
"""


@pytest.mark.parametrize("number", ["hash(action.target_name)", "hash(goal)", "crc32(goal.encode())", "1 / 0"])
def test_what_depends_on_the_hash_of_a_text_is_caught(
    number: str, package: PackageMaker, request: pytest.FixtureRequest
) -> None:
    package("dice", HOOK, modules={"dice_parts": DICE.replace("{number}", number)})
    suite = type("TestDice", (WorldModelSuite,), {"name": "dice", "settings": {"size": 2}})()
    suite.plugins = request.getfixturevalue("dynaweb_plugins")
    if number.startswith("crc32"):
        suite.test_other_processes_dream_the_same()
        return
    message = "ZeroDivisionError" if number == "1 / 0" else "of 16 predictions differ between two processes: do they"
    with pytest.raises(AssertionError, match=message):
        suite.test_other_processes_dream_the_same()


OWN = """
from dynaweb.testing import WorldModelSuite


class TestOwn(WorldModelSuite):
    name = "dice"

    def context(self, **changes):
        return super().context(folder="own", **changes)
"""


@pytest.mark.parametrize("there", [True, False])
def test_a_suite_that_makes_its_plugin_in_its_own_way_is_imported(
    there: bool, package: PackageMaker, request: pytest.FixtureRequest
) -> None:
    code = DICE.replace("print(", "assert context.folder == 'own', print(").replace("{number}", "seed")
    package("dice", HOOK, modules={"dice_parts": code, "own_suite": OWN})
    import own_suite  # type: ignore[import-not-found]

    suite = own_suite.TestOwn()
    suite.plugins = request.getfixturevalue("dynaweb_plugins")
    if there:
        suite.test_other_processes_dream_the_same()
        return
    (package.folder / "own_suite.py").unlink()
    with pytest.raises(pytest.skip.Exception, match="TestOwn cannot be imported in another process"):
        suite.test_other_processes_dream_the_same()
