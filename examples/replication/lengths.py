"""Tokens of prompts and answers on real episodes: what `max_prompt_tokens` and `max_new_tokens` have to hold.

    python examples/replication/lengths.py runs/NAME/trajectories/demos.jsonl.gz --model smollm2

Prints median, 99th percentile and maximum of what policy, world model and judge read and should write. Needs no GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from dynaweb.data.store import TrajectoryStore
from dynaweb.policy.prompt_formats import ChatFormat
from dynaweb.trainer.models import resolve
from dynaweb.types import Action, Trajectory
from dynaweb.worldmodels.change import change_text, goal_of
from dynaweb.worldmodels.dynamics import needs_prediction
from dynaweb.worldmodels.fidelity import transitions_of
from dynaweb.worldmodels.pages import page_answer


def lengths(episode: Trajectory, prompts: ChatFormat) -> Iterator[tuple[str, int]]:
    """What it is, and how many tokens it has, of every prompt and answer of an episode."""
    earlier: list[Action] = []
    for step in episode.steps:
        yield "policy: prompt", len(prompts.policy_prompt(episode.task, step.observation, earlier).ids)
        if step.action is not None:
            yield "policy: reply", len(prompts.policy_reply(step.observation, step.action, step.reasoning))
            earlier.append(step.action)
    yield "judge: prompt", len(prompts.judge_prompt(episode).ids)
    for one in transitions_of([episode]):
        question = prompts.world_model_prompt(one.observation, one.action, (), goal_of(one))
        yield "world model: prompt", len(question.ids)
        if needs_prediction(one.observation, one.action):
            yield "world model: change", len(prompts.world_model_target(change_text(one)))
            yield "world model: whole page", len(prompts.world_model_target(page_answer(one)))
        else:
            yield "world model: change that rules decide", len(prompts.world_model_target(change_text(one)))


def main() -> None:
    """Print one line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", type=Path, nargs="+", help="trajectory stores")
    parser.add_argument("--model", default="smollm2")
    options = parser.parse_args()
    prompts = ChatFormat(AutoTokenizer.from_pretrained(resolve(options.model)))
    sizes_of: dict[str, list[int]] = {}
    for store in options.store:
        for episode in TrajectoryStore(store):
            for what, size in lengths(episode, prompts):
                sizes_of.setdefault(what, []).append(size)
    print(f"{'tokens':40}{'n':>7}{'median':>8}{'99 %':>8}{'most':>8}")
    for what, sizes in sorted(sizes_of.items()):
        half, most = np.percentile(sizes, [50, 99])
        print(f"{what:40}{len(sizes):7}{half:8.0f}{most:8.0f}{max(sizes):8}")


if __name__ == "__main__":
    main()
