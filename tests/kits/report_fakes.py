"""A made-up run that looks like a real one: pages of a shop, episodes of several arms, curves, costs, verdicts."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dynaweb.report.data import Arm, Curve, JudgeAudit, Measure, ReportData, Sample, Setting, Stage
from dynaweb.report.outcome import AuditCounts, failure_kind
from dynaweb.serve.reports import server_for
from dynaweb.stats import Estimate, mean, wilson
from dynaweb.types import (
    Action,
    EndReason,
    EpisodeFacts,
    Judgement,
    Node,
    Observation,
    Source,
    Step,
    StepFacts,
    Task,
    Trajectory,
)

HOST = "http://shop.localhost"
HOSTILE = (
    "</script><script>window.hacked=1;fetch('http://evil.test/a')</script>",
    '<img src=x onerror="window.hacked=2">',
    "</textarea></title></style><!-- <svg onload=window.hacked=3>",
    "'] + window.hacked=4 //\u2028\ud800 &lt;b&gt; &amp; \x00",
)
ITEMS = ("Wool Scarf", "Lørvik Cup", "Ténor Lamp", "Copper Kettle", "Größe Tray", "Żagiel Bag", "Piñata Box")


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[str]:
    """The address at which the pages of a folder are served."""
    server = server_for(folder, port=port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def page(path: str, *body: tuple[str, str] | tuple[str, str, str | None], notice: str = "") -> Observation:
    """A shop page: head, body, foot."""
    top = (("link", "Home"), ("link", "Cart"), ("link", "Orders"), ("textbox", "Search"), ("button", "»"))
    foot = (("link", "Imprint"), ("link", "Contact"))
    rows = [*top, *body, *foot]
    nodes = tuple(Node(at, row[0], row[1], row[2] if len(row) > 2 else None) for at, row in enumerate(rows, start=1))
    return Observation(f"{HOST}{path}", nodes, notice=notice)


def home(rng: random.Random) -> Observation:
    body: list[tuple[str, str]] = [("heading", "Welcome")]
    for item in rng.sample(ITEMS, 5):
        body += [("link", item), ("text", f"Price: {rng.randrange(400, 9900) / 100:.2f}")]
    return page("/", *body, ("text", "5 of 42 items"), ("link", "Next"))


def product(name: str, *, dreamed: bool = False, notice: str = "") -> Observation:
    facts = [("text", f"Price: {'14.90' if dreamed else '12.50'}"), ("text", "Colour: moss"), ("text", "Rating: 4.5")]
    amount = ("combobox", "Quantity", "1")
    status = [("status", notice)] if notice else []
    return page(f"/product/{ITEMS.index(name)}", ("heading", name), *status, *facts, amount, ("button", "Add to cart"))


def find(observation: Observation, name: str) -> Node:
    return next(node for node in observation.nodes if node.name == name)


def click(observation: Observation, name: str) -> Action:
    node = find(observation, name)
    return Action("click", node.id, target_role=node.role, target_name=name)


def episode(number: int, outcome: str, source: Source = "real", rng: random.Random | None = None) -> Trajectory:
    """`outcome`: success, answer, loop, invalid, unread or infrastructure."""
    rng = rng or random.Random(number)
    first, name = home(rng), ""
    name = next(node.name for node in first.nodes if node.name in ITEMS)
    second = product(name, dreamed=source == "dream")
    answer = "14.90" if source == "dream" else "12.50"
    task = Task(
        f"shop-read-fact:test:{30000 + number}:0",
        f"What is the price of '{name}'?" if number % 3 else f"Tell me the price of '{name}' in the shop.",
        HOST + "/",
        ("shop",),
        "test",
        {"eval_types": ["string_match"], "reference_answers": {"exact_match": answer}},
        "shop-read-fact",
        3,
    )
    facts = StepFacts(dreamed=source == "dream")
    opened = Step(first, click(first, name), "The item is on this page.", f"click '{name}'", facts=facts)
    end: EndReason = "stop"
    final: Observation = second
    if outcome in ("success", "answer"):
        text = answer if outcome == "success" else "4.5"
        steps = [opened, Step(second, Action("stop", text=text), reply=f"stop '{text}'")]
    elif outcome == "loop":
        added = product(name, notice=f"{name} was added")
        steps = [opened, Step(second, click(second, "Add to cart"), facts=facts)]
        steps += [Step(added, Action("scroll", text="down"), "Where is it?", "scroll down", facts=facts)] * 3
        end, final = "max-steps", added
    elif outcome == "invalid":
        why = "element [4] is textbox 'Search', not 'Cart'"
        typed = Action("type", 4, "wool", True, target_role="textbox", target_name="Search")
        reply = "type 'Search' [4] 'wool' enter"
        steps, end = [opened, Step(second, typed, reply=reply, error=why, facts=facts)], "invalid"
    else:
        steps, end = [Step(first, None, reply="I think the price is", error="no action in the last line")], "invalid"
    if outcome == "infrastructure":
        end = "infrastructure"
    right = 1.0 if outcome == "success" else 0.0
    said = Judgement(right, 0.93 if right else 0.12, "P(YES) of the base model")
    if outcome == "answer" and number % 3 == 1:
        said = Judgement(1.0, 0.84, "P(YES) of the base model")
    verdict = Judgement(right, why=f"expected '{answer}'") if source != "dream" else None
    done = Trajectory(f"{source}-{number}", task, tuple(steps), final, source, end, seed=number)
    if end == "infrastructure":
        return replace(done, facts=EpisodeFacts(failure="BrowserError: the renderer crashed"))
    return replace(done, reward=said.score, judgement=said, facts=EpisodeFacts(verdict))


def hostile() -> Trajectory:
    """An episode whose every text tries to break out."""
    nodes = tuple(Node(at, "link", text, text, (("options", text),)) for at, text in enumerate(HOSTILE, start=1))
    bad = HOSTILE[0]
    seen = Observation(f"{HOST}/{bad}", nodes, HOSTILE[2], notice=HOSTILE[1])
    task = Task(bad, f"Open {bad}", HOST, evaluation={"eval_types": []})
    steps = (Step(seen, Action("click", 1, target_name=bad), HOSTILE[1], bad, HOSTILE[2]), Step(seen, None, reply=bad))
    judged = Judgement(0.0, 0.5, bad)
    facts = EpisodeFacts(Judgement(0, why=bad))
    return Trajectory(bad, task, steps, seen, "real", "invalid", 0.0, judged, facts=facts)


KINDS = ("success", "answer", "loop", "invalid", "unread")


def outcomes(rng: random.Random, difficulty: list[float], skill: float) -> tuple[float | None, ...]:
    return tuple(1.0 if skill + 0.5 * rng.random() > at else 0.0 for at in difficulty)


def fake_report(*, seeds: int = 1, episodes: int = 108, each: int = 8, updates: int = 50, seed: int = 1) -> ReportData:
    """A whole run; `each` trajectories of every arm are in the viewer."""
    rng = random.Random(seed)
    difficulty = [rng.random() for _ in range(episodes)]
    skills = {"sft": 0.42, "sft-300": 0.5, "filtered-bc": 0.66, "dynaweb": 0.7}
    played = {name: tuple(outcomes(rng, difficulty, s) for _ in range(seeds)) for name, s in skills.items()}
    arms = (
        Arm("sft", "SFT 30 steps", "sft", played["sft"], "where RL starts"),
        Arm("sft-300", "SFT 300 steps", "sft", played["sft-300"], "step count chosen on validation sites"),
        Arm("filtered-bc", "Filtered BC in dreams", "control", played["filtered-bc"], "same dreams and demonstrations"),
        Arm("dynaweb", "DynaWeb", "main", played["dynaweb"], "50 updates in dreams, BC term 0.2"),
    )
    kinds = [KINDS[at % 5] if at % 2 else "success" for at in range(each)]
    samples = [Sample(arm.name, episode(at, kinds[at], rng=rng)) for arm in arms for at in range(each)]
    samples += [Sample("dream", episode(at, KINDS[at % 5], "dream", rng), at % updates) for at in range(each)]
    samples.append(Sample("demos", episode(0, "success", "expert", rng)))
    samples.append(Sample("sft", episode(9, "infrastructure", rng=rng)))
    real = {arm.name: [sample.trajectory for sample in samples if sample.arm == arm.name] for arm in arms}
    audits = tuple(found for arm in arms if (found := audit(arm.label, real[arm.name] * 9)) is not None)
    return ReportData(
        title="dynaweb-0-1",
        subtitle="Dreams of a learned world model, a few demonstrations, equal expert data everywhere",
        seconds=443.2,
        arms=arms,
        prerequisites=(
            "Demonstrations of 24 tasks; every arm has the same ones and no other expert data.",
            "200 unrewarded exploration episodes in the real browser (1,043 steps) for the world model.",
            "A judge that was pre-trained on labelled episodes of other sites.",
        ),
        curves=curves(rng, updates),
        stages=STAGES,
        fidelity=(
            Measure("Element F1", mean([rng.gauss(0.87, 0.2) for _ in range(96)]), "shared with the real page"),
            Measure("Exact page", wilson(61, 96), "nothing missing, nothing too many"),
            Measure("Right address", wilson(90, 96), "url of the next page"),
            Measure("Next expert action exists", wilson(79, 88), "its target is on the dreamed page"),
            Measure("Readable answers", wilson(105, 107), "scripts that parse and fit the page"),
        ),
        drift=tuple(drift_step(at) for at in range(1, 7)),
        audits=audits,
        failures={name: failure_counts(found) for name, found in real.items()},
        episodes={name: len(found) for name, found in real.items()},
        samples=tuple(samples),
        total=3200 + 4 * episodes * seeds,
        settings=(
            Setting("run.seed", 0, "default"),
            Setting("wm.name", "delta", "recipe dynaweb"),
            Setting("rl.updates", updates, "--set rl.updates=50"),
            Setting("dream.invalid_ends", True, "default"),
        ),
        plugins=({"kind": "wm", "name": "delta", "package": "dynaweb", "version": "0.1.0"},),
        versions={"python": "3.11.9", "dynaweb": "0.1.0", "torch": "2.13.0"},
    )


def drift_step(at: int) -> dict[str, Estimate]:
    n = 40 - 5 * at
    shares = {"alive": 1.0 - 0.09 * at, "element_f1": 0.93 * 0.86**at, "role_f1": 0.97**at, "page_kind": 0.94**at}
    return {name: wilson(round(share * n), n) for name, share in shares.items()}


def curves(rng: random.Random, updates: int) -> tuple[Curve, ...]:
    def noisy(low: float, high: float, noise: float) -> tuple[tuple[float, float | None], ...]:
        rise = (low + (high - low) * (1 - math.exp(-at / 15)) for at in range(updates))
        return tuple((at, max(0.0, value + rng.gauss(0, noise))) for at, value in enumerate(rise))

    return (
        Curve("rl", "reward_mean", noisy(0.38, 0.8, 0.05), "DynaWeb"),
        Curve("filtered-bc", "reward_mean", noisy(0.38, 0.74, 0.05), "Filtered BC"),
        Curve("rl", "success_real", ((0, 0.62), (10, 0.7), (20, None), (30, 0.77), (40, 0.8)), "DynaWeb"),
        Curve("sft", "loss", noisy(1.2, 0.11, 0.02)),
        Curve("world-model", "loss", noisy(0.9, 0.2, 0.03)),
        Curve("rl", "entropy", noisy(0.9, 0.35, 0.04)),
        Curve("rl", "grad_norm", noisy(0.4, 0.7, 0.1)),
        Curve("rl", "clip_fraction", noisy(0.02, 0.13, 0.02)),
        Curve("rl", "lr", tuple((at, 1.5e-4 * (1 - at / updates)) for at in range(updates))),
        Curve("rl", "kl", tuple((at, None) for at in range(updates))),
    )


STAGES = (
    Stage("demos", "cached", "9f3a77c2d1", "24 demonstrations", {"seconds": 14.1, "browser_steps": 96}),
    Stage("sft", "cached", "1c88e0a921", "", {"seconds": 11.5, "tokens_trained": 172_800, "peak_memory_mib": 640}),
    Stage(
        "explore",
        "done",
        "77ab120c4e",
        "200 episodes",
        {"seconds": 92.0, "browser_steps": 1043, "tokens_generated": 20_420, "peak_memory_mib": 700},
    ),
    Stage("wm", "done", "c02b9d4410", "", {"seconds": 51.0, "tokens_trained": 1_290_000, "peak_memory_mib": 910}),
    Stage(
        "rl",
        "done",
        "5d1e6a0f03",
        "50 updates",
        {"seconds": 188.4, "tokens_generated": 412_000, "tokens_trained": 2_400_000, "peak_memory_mib": 1340},
    ),
    Stage("eval", "failed", "e19c41aa90", "108 episodes of each arm", {"seconds": 81.0, "browser_steps": 1520}),
)


def failure_counts(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """Unsuccessful episodes by kind, most frequent first."""
    kinds = Counter(kind for trajectory in trajectories if (kind := failure_kind(trajectory)) is not None)
    return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def audit(label: str, trajectories: Iterable[Trajectory]) -> JudgeAudit | None:
    """The judge against the environment on these episodes; None when none carries both."""
    counts = AuditCounts()
    for trajectory in trajectories:
        counts.add(trajectory)
    return counts.result(label)
