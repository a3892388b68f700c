"""`dynaweb push`: the folder, the card that the run tells, and the commit that a stand-in of the hub gets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from core_kit import Cli
from hub_server import Hub, hub_server
from own_kit import chat_model

from dynaweb.commands.push import push
from dynaweb.config import resolve
from dynaweb.errors import CheckpointError, ConfigError, InfrastructureError, MissingError
from dynaweb.runs import RunFolder, write_json
from dynaweb.runs.folder import open_run

SECRET, PASSWORD = "sk-canary-0123456789", "pass-word-canary"


@pytest.fixture(autouse=True)
def _logged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary_of_the_token")
    monkeypatch.setenv("CANARY_KEY", SECRET)
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("weights") / "private-name")


ARMS = [
    {"name": "sft", "label": "SFT, 30 updates", "role": "sft", "outcomes": [[0.0, 1.0, 0.0, 0.0]]},
    {"name": "dynaweb", "label": "DynaWeb | <b>", "role": "main", "outcomes": [[1.0, 1.0, 0.0, None]]},
]


def run_folder(path: Path, weights: Path, *sets: str, model: str = "", status: str = "done", **flags: Any) -> Path:
    """A run as it is left, with the policy `weights`."""
    task_settings = "env.task_settings."
    sets = (
        *(f"{task_settings}urls.shop=http://inner-host.example:7770", f"{task_settings}path={path}/secret-tasks.json"),
        f"{task_settings}logins.shop={{username = 'ann-the-admin', password_variable = 'SHOP_PASSWORD'}}",
        *("reward.server.key_variable=CANARY_KEY", "reward.server.base_url=http://user:pw-canary@judge.example/v1"),
        *sets,
    )
    recipe = resolve("own", reward="llm-judge", model=model or str(weights), overrides=sets, seed=7, **flags)
    folder = open_run(recipe, out=path)
    # A file that nobody should send.
    shutil.copytree(weights, path / "checkpoints" / "dynaweb")
    (path / "checkpoints" / "dynaweb" / "optimizer.pt").write_text(SECRET)
    write_json(path / "summary.json", {"arms": ARMS, "prerequisites": [f"A key {SECRET}."], "episodes_are": "tasks"})
    if status == "done":
        folder.finish()
    else:
        folder.set_status(status)  # type: ignore[arg-type]
    return path


def test_a_dry_run_writes_the_folder_and_sends_nothing(tmp_path: Path, weights: Path, hub: Hub) -> None:
    run = run_folder(tmp_path / "run", weights)
    result = push(run, "me/web-agent", dry_run=True)
    assert result.url == "" and hub.created == [] and hub.tokens == set()
    assert set(result.files) == {
        *("README.md", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    assert all((result.folder / name).stat().st_size == size for name, size in result.files.items())
    assert "would be sent to the public repository me/web-agent" in str(result)
    from dynaweb.report import gather

    assert gather(run).status == "done"  # its records are as they were
    from dynaweb.trainer.models import load_model

    assert load_model(result.folder).num_parameters() == load_model(weights).num_parameters()


def test_the_card_tells_what_the_run_was_and_nothing_of_the_machine(tmp_path: Path, weights: Path) -> None:
    run = run_folder(tmp_path / "run", weights)
    card = (push(run, "me/web-agent", dry_run=True).folder / "README.md").read_text(encoding="utf-8")
    head, body = card.split("---\n")[1], card.split("---\n", 2)[2]
    assert "base_model" not in head and "license" not in head and 'library_name: "transformers"' in head
    assert "| SFT, 30 updates | 25.0 [4.6, 69.9] | 4 | - | - |" in body
    assert "| DynaWeb \\| \\<b\\> | 66.7 [20.8, 93.9] | 3 |" in body
    assert "Seed: 7" in body and "transformers" in body and "`private-name` (a folder)" in body
    assert '"me/web-agent"' in body and "vllm serve me/web-agent" in body
    for secret in (SECRET, PASSWORD, "pw-canary", "inner-host", "ann-the-admin", "judge.example", str(tmp_path)):
        assert secret not in card, secret


@pytest.mark.parametrize(
    ("model", "name"),
    [("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"), ("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct")],
)
def test_a_base_model_of_the_hub_is_named_in_the_metadata(tmp_path: Path, weights: Path, model: str, name: str) -> None:
    run = run_folder(tmp_path / "run", weights, model=model)
    card = (push(run, "me/a", licence="apache-2.0", dry_run=True).folder / "README.md").read_text(encoding="utf-8")
    assert f'base_model: "{name}"\nbase_model_relation: "finetune"' in card and 'license: "apache-2.0"' in card


def test_adapters_are_sent_as_adapters(tmp_path: Path, weights: Path) -> None:
    run = run_folder(tmp_path / "run", weights, model="Qwen/Qwen2.5-0.5B-Instruct")
    policy = run / "checkpoints" / "dynaweb"
    (policy / "model.safetensors").rename(policy / "adapter_model.safetensors")
    (policy / "config.json").rename(policy / "adapter_config.json")
    result = push(run, "me/a", dry_run=True)
    card = (result.folder / "README.md").read_text(encoding="utf-8")
    assert {"adapter_model.safetensors", "adapter_config.json"} <= set(result.files)
    assert 'base_model_relation: "adapter"' in card and 'library_name: "peft"' in card
    assert 'PeftModel.from_pretrained(base, "me/a")' in card and "--lora-modules policy=me/a" in card


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("PIL")
    from vision_families import FAMILIES

    return FAMILIES["idefics3"].write(tmp_path_factory.mktemp("seeing") / "private-name")


def test_a_model_that_sees_is_sent_with_its_processor_and_called_so(tmp_path: Path, seeing: Path) -> None:
    look = ("observation.modality=both", "observation.marks=true", "observation.width=640")
    run = run_folder(tmp_path / "run", seeing, *look)
    result = push(run, "me/a", dry_run=True)
    card = (result.folder / "README.md").read_text(encoding="utf-8")
    assert 'pipeline_tag: "image-text-to-text"' in card
    assert "from transformers import AutoModelForImageTextToText, AutoProcessor" in card
    assert 'processor = AutoProcessor.from_pretrained("me/a")' in card and "AutoTokenizer" not in card
    assert "as text and as a picture of a window of 640 x 720, with numbered marks" in card
    # What the card says loads what was sent.
    from transformers import AutoModelForImageTextToText, AutoProcessor, ProcessorMixin

    assert type(AutoModelForImageTextToText.from_pretrained(result.folder)).__name__.startswith("Idefics3")
    assert isinstance(AutoProcessor.from_pretrained(result.folder), ProcessorMixin)


def test_a_card_calls_a_policy_what_its_checkpoint_is(tmp_path: Path, weights: Path, seeing: Path) -> None:
    """A family with vision that was trained on text alone, and adapters, which have no configuration of a model."""
    blind = run_folder(tmp_path / "blind", seeing)
    (blind / "checkpoints" / "dynaweb" / "processor_config.json").unlink()
    text = (push(blind, "me/a", dry_run=True).folder / "README.md").read_text(encoding="utf-8")
    assert "import AutoModelForImageTextToText, AutoTokenizer" in text and "Pages were shown" not in text
    for modality, name in (("both", "AutoModelForImageTextToText"), ("text", "AutoModelForCausalLM")):
        run = run_folder(tmp_path / modality, seeing, f"observation.modality={modality}", model="Qwen/Qwen2.5-VL-3B")
        policy = run / "checkpoints" / "dynaweb"
        (policy / "model.safetensors").rename(policy / "adapter_model.safetensors")
        (policy / "config.json").rename(policy / "adapter_config.json")
        card = (push(run, "me/a", dry_run=True).folder / "README.md").read_text(encoding="utf-8")
        assert f'base = {name}.from_pretrained("Qwen/Qwen2.5-VL-3B")' in card
        assert ('pipeline_tag: "image-text-to-text"' in card) is (modality == "both")


def test_the_hub_gets_these_files_and_no_others(tmp_path: Path, weights: Path, hub: Hub) -> None:
    run = run_folder(tmp_path / "run", weights)
    result = push(run, "lab/web-agent", private=True)
    assert result.url == f"{hub.url}/lab/web-agent/commit/abc" and hub.repo == "lab/web-agent"
    assert (hub.created[0]["organization"], hub.created[0]["name"]) == ("lab", "web-agent")
    assert hub.created[0].get("private") or hub.created[0].get("visibility") == "private"
    assert hub.files == {name: (result.folder / name).read_bytes() for name in result.files}
    assert hub.tokens == {"Bearer hf_canary_of_the_token"}
    assert not any(SECRET.encode() in content for content in hub.files.values())


def test_an_edited_card_is_sent_as_it_is(
    tmp_path: Path, weights: Path, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_folder(tmp_path / "run", weights)
    card = push(run, "me/a", dry_run=True).folder / "README.md"
    push(run, "me/b", dry_run=True)
    assert "me/b" in card.read_text(encoding="utf-8")  # nobody edited it
    card.write_text("# Mine\n", encoding="utf-8")
    push(run, "me/a")
    assert hub.files["README.md"] == b"# Mine\n" and "was edited and is sent as it is" in caplog.text


@pytest.mark.parametrize("repo", ["", "me", "me/", "/a", "me/a/b", "me a/b", "https://huggingface.co/me/a", "../a/b"])
def test_what_is_no_name_of_a_repository_is_refused(tmp_path: Path, repo: str) -> None:
    with pytest.raises(ConfigError, match="is no model repository of the hub; write it as owner/name"):
        push(tmp_path, repo)


def test_what_cannot_be_sent_is_refused_before_anything_is_written(tmp_path: Path, weights: Path) -> None:
    run = run_folder(tmp_path / "run", weights, status="interrupted")
    with pytest.raises(ConfigError, match=r"is not done \(it is interrupted\); go on with: dynaweb run --resume"):
        push(run, "me/a")
    RunFolder(run).finish()
    with pytest.raises(ConfigError, match="no licence of the hub"):
        push(run, "me/a", licence="My Licence")
    with pytest.raises(MissingError, match="has no checkpoint 'best'; it has: dynaweb"):
        push(run, "me/a", checkpoint="best")
    (run / "checkpoints" / "dynaweb" / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError):
        push(run, "me/a")
    (run / "checkpoints" / "dynaweb").rename(run / "checkpoints" / "world-model")
    with pytest.raises(MissingError, match="has no trained policy; it has: world-model"):
        push(run, "me/a")
    assert not (run / "hub").exists()
    with pytest.raises(CheckpointError, match="is not a run folder"):
        push(tmp_path / "nothing", "me/a")


@pytest.mark.parametrize(("status", "error"), [(401, MissingError), (403, MissingError), (500, InfrastructureError)])
def test_what_the_hub_refuses_is_said(
    tmp_path: Path, weights: Path, hub: Hub, status: int, error: type[Exception]
) -> None:
    hub.status = status
    with pytest.raises(error, match=r"the hub (lets this login write nothing|did not take)"):
        push(run_folder(tmp_path / "run", weights), "me/a")


def test_nobody_logged_in_and_nobody_there(tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_folder(tmp_path / "run", weights)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InfrastructureError, match="the hub cannot be reached"):
        push(run, "me/a")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(MissingError, match="nobody is logged in to the hub"):
        push(run, "me/a")


def test_from_the_command_line(tmp_path: Path, weights: Path, warm_cli: Cli) -> None:
    run_folder(tmp_path / "run", weights)
    done = warm_cli("push", "run", "me/a", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["repo"] == "me/a" and "model.safetensors" in result["files"] and result["url"] == ""
