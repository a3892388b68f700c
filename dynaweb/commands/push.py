"""`dynaweb push`: a run's trained policy on the Hugging Face hub, with a model card that the run itself tells.

    push(Path("runs/mine"), "me/web-agent", dry_run=True)      # writes the folder that would be sent

What is sent is a folder of its own inside the run: the weights with their tokenizer, as links where the disk allows,
and the card. A card that was edited there is kept. What is secret, addresses and paths of this machine never get there.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from dynaweb.config.files import expanded, read_json
from dynaweb.config.keys import digest
from dynaweb.errors import ConfigError, InfrastructureError, MissingError
from dynaweb.masking import masked, printable, remember
from dynaweb.pipeline.artifacts import link
from dynaweb.report import gather
from dynaweb.report.table import closing_rows, headline, made_words
from dynaweb.runs import RunFolder, write_json
from dynaweb.runs.atomic import write_text
from dynaweb.stats import difference_text, interval_text
from dynaweb.trainer.models import NAMED, TINY, check_safetensors, check_weights, kind_of

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.report.data import ReportData

log = logging.getLogger("dynaweb")

FOLDER, CARD, WRITTEN = "hub", "README.md", "card.json"
POLICIES = ("dynaweb", "filtered-bc", "sft")
"""Checkpoints of a run that are policies, the one that is meant first."""
ADAPTER = "adapter_config.json"
PROCESSOR = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""What a model that sees has besides: how a picture becomes its inputs."""
SENT = (
    *("*.safetensors", "model.safetensors.index.json", "config.json", "generation_config.json", ADAPTER),
    *("tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json", *PROCESSOR),
)
"""Files of a checkpoint that are sent; weights are safetensors only."""
_REPO = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was sent, or would be: the folder, its files with their sizes in bytes, and the address of the commit ('' in
    a dry run)."""

    repo: str
    folder: Path
    files: Mapping[str, int]
    private: bool
    url: str = ""

    def __str__(self) -> str:
        width = max(map(len, self.files))
        rows = [f"  {name.ljust(width)}  {size:>13,} bytes" for name, size in self.files.items()]
        kind = "private repository" if self.private else "public repository"
        head = f"sent to {self.url}" if self.url else f"would be sent to the {kind} {self.repo}, from {self.folder}"
        return "\n".join([f"{len(self.files)} files {head}", *rows])


def push(
    run: Path,
    repo: str,
    *,
    checkpoint: str = "",
    licence: str = "",
    private: bool = False,
    dry_run: bool = False,
) -> Pushed:
    """Send a finished run's policy to the model repository `repo` (`owner/name`), which is made if it is not there.

    `checkpoint` is the name of one below the run's `checkpoints/`, by default the trained policy; `licence` an
    identifier of the hub, such as `apache-2.0`: it is the user's to choose, and the card names none without it. With
    `dry_run` the folder is written and nothing is sent.

    Raises `ConfigError` for a name that is none and for a run that is not done, `MissingError` where there is no such
    checkpoint or no right to write, `CheckpointError` for damaged weights, `InfrastructureError` where the hub fails.
    """
    if not _REPO.fullmatch(repo):
        raise ConfigError(f"{repo!r} is no model repository of the hub; write it as owner/name, such as me/web-agent")
    if licence and not _LICENCE.fullmatch(licence):
        raise ConfigError(f"{licence!r} is no licence of the hub; write its identifier, such as apache-2.0 or llama3.1")
    folder = RunFolder(run)
    recipe = folder.recipe()
    if folder.status != "done":
        raise ConfigError(f"the run {run} is not done (it is {folder.status}); {folder.how_to_go_on}")
    weights = policy_folder(run, checkpoint)
    target = run / FOLDER / weights.name
    files = _linked(weights, target)
    card = model_card(gather(run, episodes=False), recipe, repo, weights, licence)
    _write_card(target, card)
    sizes = {name: (target / name).stat().st_size for name in [CARD, *files]}
    result = Pushed(repo, target, sizes, private)
    if dry_run:
        return result
    return Pushed(repo, target, sizes, private, _sent(target, sizes, repo, private, f"{weights.name} of {run.name}"))


def policy_folder(run: Path, name: str = "") -> Path:
    """The folder of a run's trained policy, or of another checkpoint. Raises `MissingError` where it has none."""
    checkpoints = run / "checkpoints"
    present = sorted(path.name for path in checkpoints.glob("*") if path.is_dir())
    chosen = name or next((policy for policy in POLICIES if policy in present), "")
    if chosen not in present:
        what = f"no checkpoint {name!r}" if name else "no trained policy"
        raise MissingError(
            f"the run {run} has {what}; it has: {', '.join(present) or 'none'}. Name one with --checkpoint, or give a "
            "run of `dynaweb run` or `dynaweb sft`"
        )
    folder = checkpoints / chosen
    if (folder / ADAPTER).exists():
        for file in folder.glob("*.safetensors"):
            check_safetensors(file)
    else:
        check_weights(folder)
    return folder


def _linked(weights: Path, target: Path) -> list[str]:
    """The names of the files that are sent, now in `target` and no others of an earlier checkpoint beside them."""
    names = sorted({path.name for pattern in SENT for path in weights.glob(pattern)})
    if not any(name.endswith(".safetensors") for name in names):
        raise MissingError(f"{weights} holds no weights as safetensors, and nothing else is sent")
    for old in target.glob("*"):
        if old.name not in (*names, CARD, WRITTEN):
            old.unlink()
    for name in names:
        link(weights / name, target / name)
    return names


def _write_card(target: Path, card: str) -> None:
    """Write the card, unless the one that is there was edited since it was written."""
    path, record = target / CARD, target / WRITTEN
    if path.exists():
        then = read_json(record, dict).get("digest") if record.exists() else ""
        if digest(path.read_text(encoding="utf-8")) != then:
            log.warning("%s was edited and is sent as it is; remove it to have it written anew", path)
            return
    write_text(path, card)
    write_json(record, {"digest": digest(path.read_text(encoding="utf-8"))})


def _sent(folder: Path, files: Mapping[str, int], repo: str, private: bool, message: str) -> str:
    """Send the folder; the address of the commit."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="dynaweb")
    token = get_token()
    if not token:
        raise MissingError(
            f"nobody is logged in to the hub, so nothing can be written to {repo}; run `hf auth login`, or set "
            "HF_TOKEN to a token with the right to write"
        )
    remember(token)
    disable_progress_bars()
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo, folder_path=str(folder), allow_patterns=[*files], commit_message=f"Upload {message}"
        )
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        why = printable(masked(str(error).strip().split("\n")[0]))
        if status in (401, 403):
            raise MissingError(
                f"the hub lets this login write nothing to {repo} ({why}); is the owner right, and has the token the "
                "right to write?"
            ) from error
        raise InfrastructureError(f"the hub did not take {repo}: {why}; give the command again") from error
    except ValueError as error:  # of a card that the hub does not take
        why = printable(masked(" ".join(str(error).split())))
        raise ConfigError(f"the hub takes no such card or name: {why}; edit {folder / CARD}") from error
    except Exception as error:  # of transport: those of the hub's client, which has changed its library before
        why = printable(masked(str(error).strip().split("\n")[0]))
        raise InfrastructureError(f"the hub cannot be reached: {why}; the folder is written: {folder}") from error
    return str(commit.commit_url)


# --- The model card


def model_card(data: ReportData, recipe: Recipe, repo: str, weights: Path, licence: str = "") -> str:
    """The card of a run's policy, in Markdown with the hub's metadata before it; without secrets, addresses, paths."""
    adapter = (weights / ADAPTER).exists()
    base, on_hub = _base(recipe.model.path)
    # Adapters lie without the model's configuration; those of a policy that sees belong to a model that does.
    seeing = recipe.observation.pictures if adapter else kind_of(str(weights), vision=True).__name__ == SEEING
    head = {
        **({"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"} if on_hub else {}),
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "image-text-to-text" if seeing else "text-generation",
        **({"license": licence} if licence else {}),
        "tags": ["web-agent", "reinforcement-learning", "dynaweb"],
    }
    version = data.versions.get("dynaweb", "?")
    folder = "" if on_hub or recipe.model.path == TINY else " (a folder)"
    sections = [
        "\n".join(["---", *_yaml(head), "---"]),
        f"# {repo.partition('/')[2]}",
        f"A policy for web agents: {_code(base)}{folder}, trained with dynaweb {version} by "
        f"the recipe {_code(recipe.name)} ({_plain(data.subtitle)}). These are its weights {_code(weights.name)}.",
        "## Results",
        _results(data),
        "## Training",
        _training(data, recipe),
        "## Use",
        _use(repo, base if on_hub else "", weights, recipe, model=SEEING if seeing else READING),
    ]
    return masked("\n\n".join(sections)) + "\n"


def _base(path: str) -> tuple[str, bool]:
    """What the base model is called in public, and whether the hub knows it by that name."""
    if path == TINY:
        return "dynaweb's tiny model", False
    if path in NAMED:
        return "HuggingFaceTB/SmolLM2-135M-Instruct", True
    if expanded(path).is_dir() or not _REPO.fullmatch(path):
        return PurePath(path).name, False
    return path, True


def _yaml(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        # JSON texts are YAML too.
        yield f"{key}: {json.dumps(value)}"


def _results(data: ReportData) -> str:
    rows = closing_rows(data)
    if not rows:
        return "The run evaluated nothing."
    lines = [
        "| policy | success, % [95 % interval] | n | against the start, points | p |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        success, since = row.success, row.since_start
        share = "-" if success.value is None else f"{100 * success.value:.1f} {interval_text(success)}"
        gain = "-" if since is None else difference_text(since.difference)
        p = "-" if since is None or since.p is None else f"{since.p:.3g}"
        lines.append(f"| {_plain(row.arm.label)} | {share} | {success.n} | {gain} | {p} |")
    words = [f"Success: {data.episodes_are}. Differences are of the same episodes; p: exact McNemar."]
    return "\n\n".join([text for text in (headline(data), "\n".join(lines), *words) if text])


def _training(data: ReportData, recipe: Recipe) -> str:
    made = made_words(data)
    versions = ", ".join(f"{name} {version}" for name, version in data.versions.items() if name != "platform")
    settings = [
        f"| {_code(path)} | {_code(_public(path, value))} |"
        for path, value in recipe.flat().items()
        if recipe.origins.get(path, "default") != "default" and not path.startswith("run.observer")
        if path not in recipe.secret
    ]
    return "\n".join(
        [
            f"- Made with: {_plain(made)}",
            f"- Seed: {recipe.run.seed}",
            f"- Versions: {_plain(versions)}",
            *(f"- It rests on: {_plain(sentence)}" for sentence in data.prerequisites),
            "",
            "Settings that differ from the defaults, without addresses and paths:",
            "",
            "| setting | value |",
            "| --- | --- |",
            *settings,
        ]
    )


SEEING, READING = "AutoModelForImageTextToText", "AutoModelForCausalLM"
"""The classes of transformers that load a policy: one that sees, and one that reads text alone."""


def _reader(weights: Path) -> str:
    """The class of transformers that makes a prompt's inputs."""
    return "AutoProcessor" if any((weights / name).exists() for name in PROCESSOR) else "AutoTokenizer"


def _shown(recipe: Recipe) -> str:
    """How the policy was shown pages, in a sentence; '' for text alone."""
    look = recipe.observation
    if not look.pictures:
        return ""
    text = "as text and as a picture" if look.modality == "both" else "as a picture"
    marks = ", with numbered marks on what can be acted on" if look.marks else ""
    return f" Pages were shown to it {text} of a window of {look.width} x {look.height}{marks}."


def _use(repo: str, base: str, weights: Path, recipe: Recipe, *, model: str) -> str:
    adapter, reader = (weights / ADAPTER).exists(), _reader(weights)
    load = [f"from transformers import {', '.join(sorted((model, reader)))}", ""]
    if adapter:
        load = ["from peft import PeftModel", *load]
        start = base or "PATH OF THE BASE MODEL"
        load += [
            f'base = {model}.from_pretrained("{start}")',
            f'model = PeftModel.from_pretrained(base, "{repo}")',
        ]
    else:
        load += [f'model = {model}.from_pretrained("{repo}")']
    load += [f'{reader.removeprefix("Auto").lower()} = {reader}.from_pretrained("{repo}")']
    serve = (
        f"vllm serve {base or 'BASE'} --enable-lora --lora-modules policy={repo}" if adapter else f"vllm serve {repo}"
    )
    limit = recipe.policy.max_new_tokens
    return "\n".join(
        [
            "```python",
            *load,
            "```",
            "",
            "```bash",
            serve,
            "```",
            "",
            f"It was trained on the prompts of dynaweb's format {_code(recipe.model.format)}, with replies of at most "
            f"{limit} tokens, and acts as it was trained only with those.{_shown(recipe)} `dynaweb eval "
            "--policy FOLDER` plays it, and "
            "`docs/your-own.md` of dynaweb has an agent for BrowserGym and AgentLab.",
        ]
    )


def _public(path: str, value: Any) -> str:
    """A value as the card shows it: neither addresses, paths nor accounts, which may tell of hosts and people."""
    if isinstance(value, str) and path.startswith(("env.task_settings.", "eval.env_settings.", "env.logins.", "env.u")):
        return "(left out)"
    if isinstance(value, str) and ("/" in value or "\\" in value) and not _REPO.fullmatch(value):
        return "(left out)"
    if isinstance(value, str) and (expanded(value).exists() or value.endswith((".gz", ".json", ".jsonl", ".toml"))):
        return "(left out)"
    if isinstance(value, list | tuple):
        return ", ".join(_public(path, one) for one in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(text: str) -> str:
    """A text that no Markdown or HTML is read from."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    return f"`{' '.join(str(text).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
