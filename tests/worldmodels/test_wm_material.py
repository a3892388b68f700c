"""What a world model is fitted on, is shown and is asked: held-out sites stay out, wherever data come from."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest

from dynaweb.config.agreement import check_refresh
from dynaweb.config.resolving import resolve
from dynaweb.data.inspect import site_of
from dynaweb.data.store import TrajectoryStore, TransitionStore
from dynaweb.errors import ConfigError, MissingError
from dynaweb.pipeline.artifacts import EPISODES, Artifact, Artifacts
from dynaweb.pipeline.context import RunContext
from dynaweb.pipeline.models import Models
from dynaweb.plugin.registry import current
from dynaweb.rl.refresh import refresh_updates
from dynaweb.rl.sources import rollout_source
from dynaweb.runs import StageCache
from dynaweb.stages.arms import lookahead
from dynaweb.stages.world_model import Material, check_fit, held_out_sites, real_transitions
from dynaweb.types import Action, Node, Observation, Step, Task, Trajectory
from dynaweb.worldmodels.fidelity import transitions_of

GO = Action("click", 1, target_role="link", target_name="On")
SITES = 6


def workspace(tmp_path: Path, *sets: str, **flags: Any) -> RunContext:
    sets = ("wm_fit.holdout=0.4", *sets)
    return RunContext(resolve("dynaweb", overrides=sets, **flags), current(), StageCache(tmp_path / "cache"))


def page(name: str) -> Observation:
    return Observation(f"http://shop.localhost/{name}", (Node(1, "link", "On"), Node(2, "heading", name)))


def episode(name: str, site: int, *, names: str = "site_seed", steps: int = 2) -> Trajectory:
    """A walk over pages of its own; its task names the site by its number, or not at all."""
    task = Task(f"{name}:{site}", "Go on", "http://shop.localhost/", split="train", meta={names: site})
    done = tuple(Step(page(f"{name}-{site}-{at}"), GO) for at in range(steps))
    return Trajectory(f"{name}/{site}", task, done, page(f"{name}-{site}-end"), "real", "max-steps")


def episodes(name: str, **more: Any) -> list[Trajectory]:
    return [episode(name, site, **more) for site in range(SITES)]


def sites(transitions: Any) -> set[str]:
    return {site_of(one) for one in transitions}


@pytest.mark.parametrize("names", ["site_seed", "seed"])
def test_a_transition_is_of_the_site_of_its_task(names: str) -> None:
    """One word for a site everywhere, or what is held out by one is fitted on by the other (tasks of MiniWoB name none:
    each of them is a site)."""
    played = episodes("walk", names=names)
    assert [site_of(one) for one in transitions_of(played)] == [e.task.site_key for e in played for _ in e.steps]
    assert len(sites(transitions_of(played))) == SITES


@pytest.mark.parametrize("names", ["site_seed", "seed"])
@pytest.mark.parametrize("wm", ["delta", "frozen-llm"])
def test_nothing_of_a_held_out_site_is_fitted_or_shown_wherever_it_comes_from(
    tmp_path: Path, names: str, wm: str
) -> None:
    explored = episodes("walk", names=names)
    demos = [replace(one, source="expert") for one in episodes("walk", names=names, steps=3)]
    store = tmp_path / "more.jsonl.gz"
    # The same sites once more, by other steps, and one that exploration never saw.
    TransitionStore(store).append(transitions_of([*episodes("walk", names=names, steps=4), episode("far", 99)]))
    ctx = workspace(tmp_path, f"wm_fit.data={store}", wm=wm)
    away = held_out_sites(ctx, explored)
    assert len(away) == 2
    given = Material.of_episodes(ctx, explored, demos)
    assert bool(given.known) == (wm == "delta")
    for part in (given.known, given.real, real_transitions(ctx, explored)):
        assert not sites(part) & away
    assert site_of(transitions_of([episode("far", 99)])[0]) in sites(given.real)
    assert len(given.real) == 4 * (2 + 4) + 2
    asked_about = sites(probe.transition for probe in given.questions.unseen)
    assert asked_about == away == given.held_out
    assert sites(given.away) == away and not sites(p.transition for p in given.questions.seen) & away


def test_data_that_are_fitted_too_make_their_sites_seen(tmp_path: Path) -> None:
    """A demonstration on a site that exploration missed is an unseen question, until the data bring that site."""
    explored, shown = episodes("walk"), [episode("walk", 50, steps=3)]
    plain = Material.of_episodes(workspace(tmp_path), explored, shown)
    store = tmp_path / "more.jsonl.gz"
    TransitionStore(store).append(transitions_of([episode("other", 50)]))
    more = Material.of_episodes(workspace(tmp_path, f"wm_fit.data={store}"), explored, shown)
    there = {"train 50"}
    assert there & sites(p.transition for p in plain.questions.unseen)
    assert not there & sites(p.transition for p in more.questions.unseen)
    assert there & sites(p.transition for p in more.questions.seen)
    assert not there & sites(more.walks) and there & sites(plain.walks)


def test_a_store_alone_holds_out_before_it_is_fitted(tmp_path: Path) -> None:
    store, more = tmp_path / "real.jsonl.gz", tmp_path / "more.jsonl.gz"
    TransitionStore(store).append(transitions_of(episodes("walk")))
    TransitionStore(more).append(transitions_of(episodes("walk", steps=5)))
    given = Material.of_store(workspace(tmp_path, f"wm_fit.data={more}"), store)
    assert given.held_out and not sites(given.known) & given.held_out
    assert sites(given.known) | given.held_out == sites(transitions_of(episodes("walk")))


def test_all_models_are_asked_the_same(tmp_path: Path) -> None:
    """Fitted, left as it is or frozen: a comparison needs the same questions."""
    explored, demos = episodes("walk"), [replace(one, source="expert") for one in episodes("demo", steps=3)]
    # A page that all sites share is known from the fitted ones.
    same = [replace(one, steps=(Step(page("home"), GO), *one.steps)) for one in explored]
    store = tmp_path / "real.jsonl.gz"
    TransitionStore(store).append(transitions_of(same))
    found = []
    for wm, sets in (("delta", ()), ("delta", ("wm_fit.steps=0",)), ("full-state", ()), ("frozen-llm", ())):
        ctx = workspace(tmp_path, *sets, wm=wm)
        given = [Material.of_episodes(ctx, same, demos), Material.of_store(ctx, store)]
        found.append([(one.questions, one.real, one.walks) for one in given])
    assert all(one == found[0] for one in found[1:])
    assert "http://shop.localhost/home" not in {p.transition.observation.url for p in found[0][0][0].unseen}


def test_no_refresh_follows_the_last_update() -> None:
    assert (
        list(refresh_updates(5, 2)) == [2, 4]
        and list(refresh_updates(4, 2)) == [2]
        and list(refresh_updates(4, 4)) == []
    )
    assert all(
        len(refresh_updates(updates, every)) == (updates - 1) // every for updates in range(1, 9) for every in (1, 3, 9)
    )


def _check_refresh(ctx: RunContext) -> None:
    check_refresh(ctx.recipe, ctx.plugins)


def test_what_would_stop_a_fit_is_said_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no transition or trajectory store gone"):
        check_fit(workspace(tmp_path, "wm_fit.data=gone"))
    with pytest.raises(MissingError, match=r"no file gone, which wm.store names"):
        check_fit(workspace(tmp_path, "wm.store=gone", wm="frozen-llm"))
    with pytest.raises(ConfigError, match="validate_every looks at the loss on held-out sites"):
        check_fit(workspace(tmp_path, "wm_fit.validate_every=2", "wm_fit.holdout=0"))
    check_fit(workspace(tmp_path, "wm_fit.validate_every=2", "wm_fit.holdout=0", wm="frozen-llm"))
    with pytest.raises(ConfigError, match=r"trains all weights, and wm_fit\.lora_rank"):
        _check_refresh(workspace(tmp_path, "wm_fit.refresh_every=1", "wm_fit.lora_rank=2"))
    with pytest.raises(ConfigError, match="frozen-llm' cannot be fitted"):
        _check_refresh(workspace(tmp_path, "wm_fit.refresh_every=1", wm="frozen-llm"))
    _check_refresh(workspace(tmp_path, "wm_fit.lora_rank=2"))


def test_a_missing_adapter_package_is_said_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingError, match=r"wm_fit.lora_rank needs the package peft.*dynaweb\[lora\]"):
        check_fit(workspace(tmp_path, "wm_fit.lora_rank=2"))
    check_fit(workspace(tmp_path, "wm_fit.lora_rank=2", wm="frozen-llm"))


@pytest.mark.parametrize("who", ["dreams", "lookahead"])
def test_whoever_dreams_with_a_world_model_names_the_sites_that_it_may_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """A frozen model may have a store of its own, with steps on the sites that exploration held out."""
    made: list[dict[str, Any]] = []

    def world_model(self: Models, model: Any, real: Any = Models.world_model, **given: Any) -> Any:
        made.append(given)
        return real(self, model, **given)

    monkeypatch.setattr(Models, "world_model", world_model)
    ctx = workspace(tmp_path, "dream.horizon=2", "model.threads=1", wm="frozen-llm")
    walks = episodes("walk")
    folder = tmp_path / "explored"
    folder.mkdir()
    TrajectoryStore(folder / EPISODES).append(walks)
    explored = Artifact("key", folder)
    if who == "dreams":
        rollout_source(ctx, Artifacts(explore=explored, world_model=explored), None)
    else:
        lookahead(ctx, None, None, explored)()
    (given,) = made
    away = held_out_sites(ctx, walks)
    assert given["held_out"] == away and len(away) == 2
    assert sites(given["transitions"]()) == sites(transitions_of(walks)) - away


def test_no_world_model_is_made_without_a_word_on_held_out_sites() -> None:
    assert signature(Models.world_model).parameters["held_out"].default is Parameter.empty
