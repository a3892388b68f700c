"""Which families of chat models go through a whole run: a table over tiny random models with each family's ways.

    python benchmarks/families.py [--json] [--docs docs/models.md] [--out FOLDER] [NAME ...]

A family is a tokenizer and a chat template in its ways (`tests/kits/chat_families.py`), and an architecture of its own:
dense or a mixture of experts, embeddings tied to the output head or not. Each model is written to disk with more rows
than its tokenizer has tokens, as many real ones, and goes through `dynaweb run smoke` from the command line on pages
without a browser, once with all weights trained and once with LoRA: demonstrations, SFT, exploration, world model,
RL in dreams with a judge, and the evaluation, with prompts that are cut to fit.

`passes` says what the run folder shows: losses are finite and gradients are not zero; SFT learned to end replies as the
template ends a turn, and the engine ended them there and nowhere else; no id without text was sampled; a group of RL
was live; the judge gave probabilities. `refused` is followed by the beginning of the error's one line. Anything else
begins with `wrong` or `fails`, and the script then exits with 1.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests" / "kits"), str(ROOT / "benchmarks")]

import torch  # noqa: E402, TID253  (a script, run on its own)
from architectures import SMALL  # noqa: E402
from chat_families import FAMILIES, Family  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig  # noqa: E402, TID253

from dynaweb.cli import main as main_of_dynaweb  # noqa: E402
from dynaweb.data.store import TrajectoryStore  # noqa: E402
from dynaweb.types import Step, Trajectory  # noqa: E402

BLOCK = re.compile(r"(?<=<!-- measured: benchmarks/families.py -->\n).*?(?=<!-- end -->)", re.S)
"""Where a page holds the table."""
SPARE = 64
"""Rows of the embeddings that no token belongs to, at least."""
PROMPT = '''
system = "You operate a web browser. Write one line that begins with ACTION:."
user = """
OBJECTIVE: {goal}
PREVIOUS ACTIONS:
{history}
URL: {url}
PAGE:
{page}"""
reply = "ACTION: {action}"
'''
"""A short prompt of the policy and a short reply, so that a run takes seconds."""
RUN = (
    "env.task_settings.driver=static",
    "env.task_settings.train_sites=1",
    "model.threads=1",
    "model.max_prompt_tokens=700",
    "policy.max_prompt_tokens=200",
    "policy.max_new_tokens=24",
    "data.demos=4",
    "data.experts=all",
    "sft.steps=40",
    "sft.batch=8",
    "sft.lr=0.01",
    "explore.episodes=2",
    "explore.steps=2",
    "explore.player=random",
    "wm_fit.steps=2",
    "wm_fit.batch=2",
    "wm_fit.open_loop=0",
    "wm.max_new_tokens=8",
    "wm.retries=0",
    "reward.soft=true",
    "reward.evidence=false",
    "dream.horizon=2",
    "rl.updates=2",
    "rl.tasks=2",
    "rl.n=4",
    "rl.bc_batch=2",
    "rl.expert_share=0.3",
    "eval.episodes=3",
    "eval.steps=2",
    "controls.sft_steps=[]",
)
LORA = ("wm_fit.lora_rank=4", "rl.lora_rank=4")


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of the table: a family, the architecture of transformers that it is built with, and what is set of that."""

    family: str
    kind: str
    experts: bool = False
    tied: bool = False
    thinking: bool | None = None
    """`enable_thinking` for templates that take it; None = the toolkit's default, which is off."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How the table and the command line call it."""
        return f"{self.family} {self.kind}{' thinking' if self.thinking else ''}"


DEEPSEEK = {"head_dim": 8, "num_key_value_heads": 4}
VARIANTS = (
    Variant("llama-3", "llama", tied=True),
    Variant(
        "llama-4",
        "llama4_text",
        experts=True,
        settings={"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "attention_chunk_size": 128},
    ),
    Variant("qwen-2.5", "qwen2", tied=True),
    Variant("qwen-2.5", "qwen2_moe", experts=True),
    Variant("qwen-3", "qwen3", tied=True),
    Variant("qwen-3", "qwen3", tied=True, thinking=True),
    Variant("qwen-3", "qwen3_moe", experts=True),
    Variant("gemma", "gemma2", tied=True),
    Variant("gemma", "gemma3_text", tied=True),
    Variant("mistral", "mistral"),
    Variant("mistral", "mixtral", experts=True),
    Variant("llama-2", "llama"),
    Variant("sentencepiece", "llama", tied=True),
    Variant("phi", "phi3"),
    Variant("phi", "phimoe", experts=True),
    Variant("glm", "glm4"),
    Variant("glm", "glm4_moe", experts=True, thinking=True),
    Variant("smollm-3", "smollm3", tied=True),
    Variant("smollm-3", "smollm3", tied=True, thinking=True),
    Variant("deepseek-r1", "qwen2"),
    Variant("deepseek-r1", "deepseek_v3", experts=True, settings=DEEPSEEK),
    Variant("gpt-oss", "gpt_oss", experts=True),
    Variant("parts", "llama"),
    Variant("gpt-2", "gpt2", tied=True),
    Variant("word-level", "opt", tied=True),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the table."""

    name: str
    experts: str
    template: str
    thinking: str
    tied: str
    all_weights: str = "-"
    lora: str = "-"

    @property
    def wrong(self) -> list[str]:
        """Columns whose cell says that something went wrong."""
        return [name for name in ("all_weights", "lora") if getattr(self, name).startswith(("wrong", "fails"))]


def family_of(variant: Variant) -> Family:
    """The tokenizer and template of a row."""
    return next(one for one in FAMILIES if one.name == variant.family)


def build(variant: Variant, folder: Path) -> None:
    """Write a tiny random model of a row, with its tokenizer and what its `generation_config` lists."""
    family = family_of(variant)
    tokenizer = family.tokenizer()
    default = type(AutoConfig.for_model(variant.kind))
    known = default()
    sizes = {
        **SMALL,
        **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 64),
        **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "intermediate_size_mlp"), 96),
        **dict.fromkeys(("max_position_embeddings", "n_positions"), 2048),
        **dict.fromkeys(("sliding_window", "attention_chunk_size"), 512),
        "head_dim": 16,
        "vocab_size": (len(tokenizer) + 2 * SPARE - 1) // SPARE * SPARE,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": variant.tied,
        **variant.settings,
    }
    torch.manual_seed(0)
    config = default(**{name: value for name, value in sizes.items() if hasattr(known, name)})
    model: Any = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(eos_token_id=list(family.end_ids(tokenizer)) or None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def command(verb: str, model: Path, prompt: Path, out: Path, variant: Variant, *, lora: bool) -> list[str]:
    """The command line of a run, or of an audit."""
    sets = [*RUN, *(LORA if lora else ()), f"policy.prompt={prompt}"]
    if variant.thinking is not None:
        sets.append(f"model.template={{enable_thinking={str(variant.thinking).lower()}}}")
    words = [word for setting in sets for word in ("--set", setting)]
    return ["dynaweb", *verb.split(), "smoke", "--model", str(model), "--out", str(out), *words]


def exit_code(words: Sequence[str], log: Path) -> int | None:
    """Run a command line in a process of its own, but one that has imported torch already."""
    process = multiprocessing.get_context("fork").Process(target=run_command, args=(words, log))
    process.start()
    process.join()
    return process.exitcode


def run_command(words: Sequence[str], log: Path) -> None:
    """The command line `dynaweb` in this process, which it ends; the stage cache is beside the folders of families."""
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ["DYNAWEB_CACHE"] = str(log.parents[1] / "cache")
    sys.argv = [*words]
    main_of_dynaweb()


def outcome(variant: Variant, model: Path, folder: Path, *, lora: bool) -> str:
    """The cell of a run: `passes`, the line in which it was refused, or what is wrong."""
    prompt, out = folder / "prompt.toml", folder / ("lora" if lora else "all-weights")
    prompt.write_text(PROMPT, encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    log = folder / f"{out.name}.log"
    code = exit_code(command("run", model, prompt, out, variant, lora=lora), log)
    told = log.read_text(encoding="utf-8").strip().splitlines()
    errors = [line.removeprefix("error: ") for line in told if line.startswith("error: ")]
    if code == 2 and len(errors) == 1 and not (out / "metrics.jsonl").exists():
        return f"refused: {re.split(r' [(]|; ', errors[0])[0]}"
    if code:
        return f"fails ({code}): {[*errors, *told, 'no word'][0]}"
    problems = list(faults(variant, out))
    if not lora:  # the judge is the base model in both runs
        audit = folder / "audit"
        shutil.rmtree(audit, ignore_errors=True)
        words = command("judge audit", model, prompt, audit, variant, lora=False)
        code = exit_code([*words, "--data", str(out / "trajectories" / "demos.jsonl.gz")], folder / "audit.log")
        problems += [f"the audit of the judge fails ({code})"] if code else judged(audit)
    return f"wrong: {'; '.join(problems)}" if problems else "passes"


def faults(variant: Variant, out: Path) -> Iterator[str]:
    """What the folder of a finished run shows to be wrong."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    updates = {
        stage: [row["metrics"] for row in rows if row["event"] == "update" and row["stage"] == stage]
        for stage in ("sft", "world-model", "rl")
    }
    for stage, metrics in updates.items():
        if not metrics or not all(finite(one["loss"]) for one in metrics):
            yield f"the loss of {stage} is not finite"
        elif not all(finite(one["grad_norm"]) and one["updated"] for one in metrics):
            yield f"an update of {stage} was skipped"
        elif not any(one["grad_norm"] > 0 for one in metrics):
            yield f"no gradient in {stage}"
    if not any(one["dead_groups"] < 1 for one in updates["rl"]):
        yield "no live group"
    costs = {row["name"]: row["metrics"] for row in rows if row["event"] == "stage" and "metrics" in row}
    if not costs["sft"].get("prompts_cut"):
        yield "no prompt was cut, so that cutting was not tried"
    played = [one for file in sorted(out.glob("trajectories/*.jsonl.gz")) for one in TrajectoryStore(file)]
    yield from ended(variant, played)


def finite(value: float | None) -> bool:
    """Whether a metric is a number."""
    return value is not None and math.isfinite(value)


def judged(audit: Path) -> Iterator[str]:
    """What the folder of an audit shows to be wrong with the judge's scores of finished episodes."""
    found = json.loads((audit / "judges.json").read_text(encoding="utf-8"))
    judge, episodes = found["judges"][0], found["episodes"]
    brier = judge["quality"]["brier"]
    if judge["all"]["silent"] or brier["n"] != episodes:
        yield f"the judge gave a probability of {brier['n']} of {episodes} episodes"
    elif not 0 < brier["value"] < 1:
        yield "the judge is sure of everything"


def ended(variant: Variant, played: Sequence[Trajectory]) -> Iterator[str]:
    """What is wrong with the ends of replies, and with their ids."""
    family = family_of(variant)
    tokenizer = family.tokenizer()
    ends = {*family.end_ids(tokenizer), tokenizer.eos_token_id} - {None}
    turn_end = tokenizer.convert_tokens_to_ids(family.turn_end.strip())
    replies = [step for one in played for step in one.steps if sampled(step)]
    if not replies:
        yield "the policy sampled nothing"
        return
    if any(i >= len(tokenizer) for step in replies for i in step.response_ids):
        yield "an id without text was sampled"
    if any(i in {*ends, turn_end} for step in replies for i in step.response_ids[:-1]):
        yield "a reply went on behind its end"
    last = [step for step in replies if step.response_ids[-1] in {*ends, turn_end}]
    if not any(step.response_ids[-1] == turn_end for step in last):
        yield f"none of {len(replies)} replies ended with {family.turn_end!r}"
    if not any(step.action is not None for step in last):
        yield f"none of {len(replies)} replies holds an action"


def sampled(step: Step) -> bool:
    """Whether the policy drew the reply of a step."""
    return bool(step.response_ids) and bool(step.logprobs)


def described(variant: Variant) -> Verdict:
    """A row of the table that was not measured."""
    family = family_of(variant)
    thinks, channels = "<think>" in family.plain, "<|channel|>" in family.specials
    return Verdict(
        variant.name,
        "experts" if variant.experts else "dense",
        "yes" if family.template else "none",
        "channels" if channels else "-" if not thinks else "on" if variant.thinking or family.lead else "off",
        "tied" if variant.tied else "untied",
    )


def measured(variant: Variant, folder: Path) -> Verdict:
    """A row of the table."""
    model = folder / "model"
    build(variant, model)
    cells = {name: outcome(variant, model, folder, lora=name == "lora") for name in ("all_weights", "lora")}
    return replace(described(variant), **cells)


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a table of markdown."""
    names = [one.name.replace("_", " ") for one in fields(Verdict)]
    lines = [names, ["---"] * len(names), *([f"`{v.name}`", *list(asdict(v).values())[1:]] for v in verdicts)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def documented(page: Path) -> list[Verdict]:
    """The verdicts that stand in a page of the documentation."""
    block = BLOCK.search(page.read_text(encoding="utf-8"))
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in (block[0] if block else "").splitlines()
    ]
    return [Verdict(row[0].strip(" `"), *row[1:]) for row in rows[2:]]


def write(page: Path, verdicts: Sequence[Verdict]) -> None:
    """Put verdicts into the table of a page, which keeps what it says of other rows."""
    known = {verdict.name: verdict for verdict in (*documented(page), *verdicts)}
    rows = [known.get(variant.name, described(variant)) for variant in VARIANTS]
    text = page.read_text(encoding="utf-8")
    page.write_text(BLOCK.sub(lambda _: table(rows), text, count=1), encoding="utf-8")


def main() -> int:
    """Measure, print or write the table; 1 where a cell is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="families, or rows of the table (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="put the table into a page")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep models, runs and their logs there")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a process with threads must not fork
    chosen = [one for one in VARIANTS if not options.names or {one.family, one.name} & {*options.names}]
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="dynaweb-families-") as temporary:
        for variant in chosen:
            folder = (options.out or Path(temporary)).resolve() / variant.name.replace(" ", "-")
            folder.mkdir(parents=True, exist_ok=True)
            verdicts.append(measured(variant, folder))
            if options.json:
                sys.stdout.write(json.dumps(asdict(verdicts[-1])) + "\n")
                sys.stdout.flush()
            sys.stderr.write(f"{variant.name}: {verdicts[-1].all_weights} | LoRA: {verdicts[-1].lora}\n")
    if options.docs:
        write(options.docs, verdicts)
    elif not options.json:
        sys.stdout.write(table(verdicts))
    return int(any(verdict.wrong for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
