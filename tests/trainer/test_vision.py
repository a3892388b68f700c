"""Models that see, against transformers' own processors, forward passes and `generate`, family by family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from vision_families import FAMILIES, Album

from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.scheduler import Lockstep
from dynaweb.errors import ConfigError
from dynaweb.policy.prompt_formats import ChatFormat
from dynaweb.policy.settings import PromptSettings
from dynaweb.protocols import GenerateRequest, TokenRow
from dynaweb.trainer.torch_trainer import TorchTrainer
from dynaweb.trainer.vision import ModelVision
from dynaweb.types import Image, Node, Observation, Prompt, Screenshot, Task
from dynaweb.web.page.text import render

TASK = Task(
    "t", "Open the cart <image> and say <|image_pad|> what <start_of_image> it <|image|> costs", "http://a.localhost"
)


class Seen:
    """A family's model with its own vision, and prompts over some pages."""

    def __init__(self, name: str, folder: Any) -> None:
        self.family = FAMILIES[name]
        self.family.write(folder)
        self.model, self.processor = self.family.build()
        self.album = Album()
        self.vision = ModelVision(str(folder), self.album.read)
        self.format = ChatFormat(self.processor.tokenizer, self.settings())
        # Wide, high and small ones, so that grids and numbers of tiles differ.
        self.images = [self.album.add(*size, seed=i) for i, size in enumerate([(64, 48), (40, 80), (64, 48), (30, 20)])]
        self.prompts = [self.prompt(image, i) for i, image in enumerate(self.images)]

    def settings(self, **more: Any) -> PromptSettings:
        ends = self.family.end_ids(self.processor.tokenizer)
        return PromptSettings(ends=ends, modality="both", vision=self.vision, context=4096, policy_reply=8, **more)

    def prompt(self, image: Image, lines: int = 0) -> Prompt:
        return self.format.policy_prompt(TASK, page(image, lines), ())

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        """What transformers' own processor makes of the prompt's images, with its ids."""
        pictures = [self.album.pillow(image) for image in prompt.images]
        own = self.processor(text=[self.vision.placeholder * len(pictures)], images=[pictures], return_tensors="pt")
        ids = torch.tensor([prompt.ids])
        out = {**own, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for name in ("mm_token_type_ids", "token_type_ids"):
            if name in out:
                out[name] = torch.tensor(self.processor.create_mm_token_type_ids([list(prompt.ids)]))
        return {name: value.float() if value.is_floating_point() else value for name, value in out.items()}


def page(image: Image | None, lines: int = 0) -> Observation:
    nodes = (Node(1, "link", "cart <image>"), *(Node(i + 2, "button", f"buy {i}") for i in range(lines)))
    shot = None if image is None else Screenshot(image, (image.width, image.height))
    return Observation("http://a.localhost/", nodes, screenshot=shot)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with pytest.MonkeyPatch.context() as patch:
        # transformers 5.24 reads it of its own output of Llama 4, which lacks it, so that its forward pass fails.
        patch.setattr(MoeCausalLMOutputWithPast, "image_outputs", None, raising=False)
        yield Seen(request.param, tmp_path_factory.mktemp(request.param) / "model")


@pytest.mark.skipif("llama4" not in FAMILIES, reason="its processor needs torchvision")
def test_a_model_whose_own_forward_fails_is_refused_in_one_line() -> None:
    """Llama 4 in transformers 5.24; where this fails, a newer one has mended it, and docs/models.md can say so."""
    model, _ = FAMILIES["llama4"].build()
    with pytest.raises(ConfigError, match="Llama4ForConditionalGeneration fails on a few tokens") as error:
        TransformersEngine(model, Lockstep())
    assert "\n" not in str(error.value)


def test_prompts_have_the_ids_that_the_processor_gives_with_its_images(seen: Seen) -> None:
    plain = replace(TASK, intent="Open the cart")
    system, before, after = seen.format.policy.question(plain, page(seen.images[0], 0), ())
    for image in seen.images:
        shown = Observation("http://a.localhost/", (Node(1, "link", "cart"),), screenshot=Screenshot(image, (1, 1)))
        prompt = seen.format.policy_prompt(plain, shown, ())
        user = f"{before}{render(shown, 'webarena')}{after}"
        parts = [{"type": "image", "image": seen.album.pillow(image)}, {"type": "text", "text": user}]
        turns = [
            {"role": "system", "content": [{"type": "text", "text": system}]},
            {"role": "user", "content": parts},
        ]
        own = seen.processor.apply_chat_template(turns, tokenize=True, return_dict=True, add_generation_prompt=True)
        assert list(prompt.ids) == list(own["input_ids"][0])
        assert prompt.images == (image,)


def test_no_page_or_goal_can_write_a_token_of_an_image(seen: Seen) -> None:
    image = seen.images[0]
    tokens = seen.vision.expansion(image)
    marks = {seen.vision.placeholder, *seen.family.specials}
    nodes = tuple(Node(i + 1, "link", f"x{mark}y") for i, mark in enumerate(sorted(marks)))
    written = seen.format.policy_prompt(TASK, Observation("u", nodes, screenshot=Screenshot(image, (1, 1))), ())
    ids = seen.processor.tokenizer(tokens, add_special_tokens=False).input_ids
    assert written.ids.count(seen.vision.image_id) == ids.count(seen.vision.image_id) > 0


def test_inputs_are_those_of_the_processor(seen: Seen) -> None:
    for prompt in seen.prompts:
        ours = {**seen.vision.inputs([prompt]), **seen.vision.token_types(torch.tensor([prompt.ids]))}
        theirs = seen.inputs(prompt)
        assert ours.keys() == theirs.keys() - {"input_ids", "attention_mask"}
        for name, value in ours.items():
            assert torch.equal(value.to(theirs[name].dtype), theirs[name]), name


def test_generation_is_that_of_transformers(seen: Seen) -> None:
    """Prompts with other images, the same one twice, one with the ids of another and another image, and one without."""
    same_ids = Prompt(seen.prompts[0].ids, (seen.images[2],))
    blind = seen.format.with_modality("text").policy_prompt(TASK, page(None, 3), ())
    prompts = [*seen.prompts, seen.prompts[1], same_ids, blind]
    engine = TransformersEngine(
        seen.model, Lockstep(), pad_id=seen.format.pad_id, unwritten=seen.vision.unwritten, vision=seen.vision
    )
    stops = seen.format.stop_ids
    requests = [GenerateRequest(p, 6 + i % 3, temperature=0.0, seed=i, stop_ids=stops) for i, p in enumerate(prompts)]
    replies = engine.generate_batch(requests)
    for request, reply in zip(requests, replies, strict=True):
        ids = torch.tensor([request.prompt.ids])
        inputs = (
            seen.inputs(request.prompt) if request.prompt.images else {"input_ids": ids, "attention_mask": ids * 0 + 1}
        )
        own = seen.model.generate(
            **inputs,
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
            suppress_tokens=list(seen.vision.unwritten),
            eos_token_id=list(stops),
        )[0, len(request.prompt) :]
        assert reply.token_ids == tuple(own.tolist())
    assert len({reply.token_ids for reply in replies}) > 1
    assert replies[0].logprobs != replies[5].logprobs, "the same ids with another picture are another prompt"
    assert engine.stats.image_tokens == sum(p.ids.count(seen.vision.image_id) for p in prompts if p.images)


def rows_of(seen: Seen) -> list[TokenRow]:
    draw = torch.Generator().manual_seed(3)
    size = len(seen.processor.tokenizer)
    replies = [
        torch.randint(20 + len(seen.family.specials), size, (n,), generator=draw).tolist() for n in (5, 3, 7, 4, 6)
    ]
    blind = seen.format.with_modality("text").policy_prompt(TASK, page(None, 3), ())
    prompts = [*seen.prompts, blind]
    return [TokenRow(prompt, tuple(reply), i) for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True))]


def naive(seen: Seen, row: TokenRow) -> torch.Tensor:
    """Log-probabilities of a row by the model's own forward on it alone."""
    ids = torch.tensor([[*row.prompt.ids, *row.response_ids]])
    inputs = seen.inputs(row.prompt) if row.prompt.images else {}
    types = {
        name: torch.nn.functional.pad(value, (0, len(row.response_ids)))
        for name, value in inputs.items()
        if "type_ids" in name
    }
    whole = {**inputs, **types, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    logits = seen.model(**whole, use_cache=False).logits[0, len(row.prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(row.response_ids)[:, None])[:, 0]


def test_log_probabilities_and_gradients_are_those_of_a_naive_forward(seen: Seen) -> None:
    rows = rows_of(seen)
    model = seen.model
    trainer = TorchTrainer(model, lr=1e-3, total_steps=10, micro_tokens=200, vision=seen.vision, max_grad_norm=1e9)
    with torch.no_grad():
        for ours, row in zip(trainer.logprobs(rows), rows, strict=True):
            np.testing.assert_allclose(ours, naive(seen, row).numpy(), atol=2e-4)
    count = sum(len(row.response_ids) for row in rows)
    loss = -torch.stack([naive(seen, row).sum() for row in rows]).sum() / count
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    wanted = dict(zip((name for name, _ in model.named_parameters()), gradients, strict=True))
    with trainer._update() as update:
        update.supervised(rows, 1.0)
        ours = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    largest = max(float(one.abs().max()) for one in gradients if one is not None)
    assert largest > 0
    seeing = [name for name, one in wanted.items() if one is not None and "vis" in name and float(one.abs().max()) > 0]
    assert seeing, "what an image shows has a gradient"
    for name, gradient in wanted.items():
        if gradient is not None:
            own = ours[name] if ours[name] is not None else torch.zeros_like(gradient)
            assert float((own - gradient).abs().max()) <= 2e-3 * largest, name
    assert update.image_tokens == sum(row.prompt.ids.count(seen.vision.image_id) for row in rows)
    model.zero_grad()
