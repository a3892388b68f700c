"""Tiny random models that see, in the ways of real families: tokenizer, template, processor and architecture of each.

Processors are the families' own classes, made of settings; nothing is downloaded. The templates are written anew, after
the habits of each family. A family whose processor needs a package that is not installed is left out of `FAMILIES`.
"""

# ruff: noqa: E501  (templates are read more easily unbroken)

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from chat_families import byte_level, metaspace
from transformers import AutoModelForImageTextToText, GenerationConfig, PreTrainedTokenizerFast

from dynaweb.types import Image


def torchvision_works() -> bool:
    """Whether torchvision can be imported; with a torch without GPUs it lacks two operations that nobody here calls."""
    try:
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(
                    f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
        import torchvision.transforms.v2.functional  # noqa: F401
    except (ImportError, RuntimeError):
        return False
    return True


def num2words_works() -> bool:
    """Whether the package that SmolVLM's processor spells numbers with is installed."""
    try:
        import num2words  # noqa: F401
    except ImportError:
        return False
    return True


TORCHVISION = torchvision_works()
DENSE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
HEAD = 8
"""Width of an attention head of the language model."""
SIGLIP = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}

_PARTS = "{% for p in m.content %}{% if p.type == 'image' %}IMAGE{% elif p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
_CONTENT = "{% if m.content is string %}{{ m.content }}{% else %}" + _PARTS + "{% endif %}"
SMOLVLM = (
    "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}{% if m.content[0].type == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in m.content %}{% if line.type == 'text' %}{{ line.text }}{% elif line.type == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    + _CONTENT.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = (messages[0].content if messages[0].content is string else messages[0].content[0].text) + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{% if loop.first %}{{ first }}{% endif %}"
    "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<start_of_image>{% elif p.type == 'text' %}{{ p.text | trim }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA4 = (
    "{{ bos_token }}{% for m in messages %}<|header_start|>{{ m.role }}<|header_end|>\n\n"
    + _CONTENT.replace("IMAGE", "<|image|>")
    + "<|eot|>{% endfor %}{% if add_generation_prompt %}<|header_start|>assistant<|header_end|>\n\n{% endif %}"
)


def dense(head: int) -> dict[str, int]:
    """`DENSE` with attention heads of another width; vLLM's kernels know none of less than 32."""
    wide = {name: DENSE[name] * head // HEAD for name in ("hidden_size", "intermediate_size")}
    return {**DENSE, **wide, "head_dim": head}


@dataclass(frozen=True)
class SeeingFamily:
    """How one family sees. `ends` are what its generation_config lists, by name; `parts` makes config and processor of
    a tokenizer and the width of an attention head."""

    name: str
    specials: tuple[str, ...]
    template: str
    eos: str
    ends: tuple[str, ...]
    parts: Callable[[Any, int], tuple[Any, Any]]
    bos: str | None = None
    cut: Callable[..., Any] = byte_level
    named: dict[str, str] = field(default_factory=dict)
    """Tokens that the family's tokenizers know by a name."""
    needs: tuple[str, ...] = ()
    """Packages that its processor needs besides Pillow."""

    def tokenizer(self) -> Any:
        """A tokenizer of this family, with its template."""
        backend = self.cut(list(self.specials), ())
        made = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token=self.eos,
            bos_token=self.bos,
            pad_token=self.specials[0],
            unk_token="<unk>" if backend.token_to_id("<unk>") is not None else None,
            extra_special_tokens=dict(self.named),
            clean_up_tokenization_spaces=False,
        )
        made.chat_template = self.template
        return made

    def build(self, seed: int = 0, dtype: torch.dtype = torch.float32, head: int = HEAD) -> tuple[Any, Any]:
        """A random model and its processor."""
        config, processor = self.parts(self.tokenizer(), head)
        processor.chat_template = self.template
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype).eval()
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for value in model.parameters():
                # Loud enough that what an image shows changes what is said.
                if value.dim() > 1:
                    value.copy_(torch.randn(value.shape, generator=draw) * (1.2 / value.shape[-1] ** 0.5))
        tokenizer = processor.tokenizer
        ends = [tokenizer.convert_tokens_to_ids(end) for end in self.ends]
        model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id)
        return model, processor

    def end_ids(self, tokenizer: Any) -> tuple[int, ...]:
        """The ids that its generation_config lists."""
        return tuple(tokenizer.convert_tokens_to_ids(name) for name in self.ends)

    def write(self, folder: Path, seed: int = 0, head: int = HEAD) -> Path:
        """A model folder with its processor."""
        model, processor = self.build(seed, head=head)
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        return folder


def _vocabulary(tokenizer: Any) -> int:
    """Rows of the embeddings: more than there are tokens, as many real models have."""
    return -(-(len(tokenizer) + 16) // 64) * 64


def _smolvlm(kind: str) -> Callable[[Any, int], tuple[Any, Any]]:
    def parts(tokenizer: Any, head: int) -> tuple[Any, Any]:
        config_of, processor_of = (getattr(transformers, kind + what) for what in ("Config", "Processor"))
        image_id = tokenizer.convert_tokens_to_ids("<image>")
        text = {"model_type": "llama", "vocab_size": _vocabulary(tokenizer), "pad_token_id": 0, **dense(head)}
        config = config_of(
            image_token_id=image_id,
            scale_factor=2,
            vision_config={**SIGLIP, "image_size": 32, "patch_size": 8},
            text_config=text,
            pad_token_id=0,
            tie_word_embeddings=kind == "SmolVLM",
        )
        size = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
        images = getattr(transformers, f"{kind}ImageProcessor{'' if TORCHVISION else 'Pil'}")(**size)
        if kind == "SmolVLM":
            video = transformers.SmolVLMVideoProcessor(**size, num_frames=4, fps=1)
            return config, processor_of(images, tokenizer, video, image_seq_len=4)
        return config, processor_of(images, tokenizer, image_seq_len=4)

    return parts


def _qwen(kind: str) -> Callable[[Any, int], tuple[Any, Any]]:
    def parts(tokenizer: Any, head: int) -> tuple[Any, Any]:
        config_of, processor_of = (getattr(transformers, kind + what) for what in ("Config", "Processor"))
        ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(text) for name, text in VISION_MARKS.items()}
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [head // 8, head // 8, head // 4]}
        text = {
            "vocab_size": _vocabulary(tokenizer),
            "rope_parameters": rope,
            **dense(head),
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
        }
        patch = 8
        seeing = {
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "patch_size": patch,
            "out_hidden_size": 4 * head,
        }
        if kind == "Qwen3VL":
            text |= {"pad_token_id": 0}
            text["rope_parameters"] = {**rope, "mrope_interleaved": True}
            seeing |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
        else:
            seeing |= {"window_size": 32, "fullatt_block_indexes": [1]}
        config = config_of(vision_config=seeing, text_config=text, tie_word_embeddings=kind == "Qwen3VL", **ids)
        settings = {"patch_size": patch, "merge_size": 2, "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 48}}
        video = getattr(transformers, f"{'Qwen3VL' if kind == 'Qwen3VL' else 'Qwen2VL'}VideoProcessor")(**settings)
        return config, processor_of(transformers.Qwen2VLImageProcessor(**settings), tokenizer, video)

    return parts


VISION_MARKS = {
    "image": "<|image_pad|>",
    "video": "<|video_pad|>",
    "vision_start": "<|vision_start|>",
    "vision_end": "<|vision_end|>",
}


def _gemma(tokenizer: Any, head: int) -> tuple[Any, Any]:
    ids = {name: tokenizer.convert_tokens_to_ids(text) for name, text in GEMMA_MARKS.items()}
    text = {
        **dense(head),
        "vocab_size": _vocabulary(tokenizer),
        "query_pre_attn_scalar": head,
        "sliding_window": 24,
    }
    text |= {"layer_types": ["sliding_attention", "full_attention"]}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config={**SIGLIP, "image_size": 32, "patch_size": 8, "vision_use_head": False},
        mm_tokens_per_image=4,
        boi_token_index=ids["boi_token"],
        eoi_token_index=ids["eoi_token"],
        image_token_index=ids["image_token"],
        eos_token_id=tokenizer.eos_token_id,
    )
    images = getattr(transformers, f"Gemma3ImageProcessor{'' if TORCHVISION else 'Pil'}")
    return config, transformers.Gemma3Processor(images(size={"height": 32, "width": 32}), tokenizer, image_seq_length=4)


GEMMA_MARKS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}


def _llama(tokenizer: Any, head: int) -> tuple[Any, Any]:
    text = {
        **dense(head),
        "vocab_size": _vocabulary(tokenizer),
        "intermediate_size_mlp": 48,
        "pad_token_id": 0,
    }
    text |= {"num_local_experts": 4, "attention_chunk_size": 64, "no_rope_layers": [1, 0], "num_hidden_layers": 2}
    seeing = {
        **SIGLIP,
        "image_size": 32,
        "patch_size": 8,
        "vision_output_dim": 16,
        "projector_input_dim": 16,
        "projector_output_dim": 16,
    }
    config = transformers.Llama4Config(
        text_config=text,
        vision_config={**seeing, "intermediate_size": 64},
        image_token_index=tokenizer.convert_tokens_to_ids("<|patch|>"),
        boi_token_index=tokenizer.convert_tokens_to_ids("<|image_start|>"),
        eoi_token_index=tokenizer.convert_tokens_to_ids("<|image_end|>"),
    )
    images = transformers.Llama4ImageProcessor(size={"height": 32, "width": 32}, max_patches=4)
    return config, transformers.Llama4Processor(images, tokenizer, patch_size=8)


def _with_line_breaks(specials: list[str], plain: tuple[str, ...]) -> Any:
    """Pieces among which several line breaks are one, so that those around an image join those of the text."""
    return metaspace(specials, (*plain, *("\n" * count for count in range(1, 5))))


_ROWS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))
_IDEFICS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<end_of_utterance>",
    "<fake_token_around_image>",
    "<global-img>",
    "<image>",
    *_ROWS,
)
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *VISION_MARKS.values())
_LLAMA = (
    "<|finetune_right_pad|>",
    *("<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|header_end|>", "<|eot|>"),
    *("<|image_start|>", "<|image_end|>", "<|image|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
)
_ALL = (
    SeeingFamily(
        name="smolvlm",
        specials=_IDEFICS,
        template=SMOLVLM,
        eos="<end_of_utterance>",
        ends=("<end_of_utterance>",),
        parts=_smolvlm("SmolVLM"),
        bos="<|im_start|>",
        needs=("torchvision", "num2words"),
    ),
    SeeingFamily(
        name="idefics3",
        specials=_IDEFICS,
        template=SMOLVLM,
        eos="<end_of_utterance>",
        ends=("<end_of_utterance>",),
        parts=_smolvlm("Idefics3"),
        bos="<|im_start|>",
    ),
    SeeingFamily(
        name="qwen2.5-vl",
        specials=_QWEN,
        template=QWEN,
        eos="<|im_end|>",
        ends=("<|im_end|>", "<|endoftext|>"),
        parts=_qwen("Qwen2_5_VL"),
        needs=("torchvision",),
    ),
    SeeingFamily(
        name="qwen3-vl",
        specials=_QWEN,
        template=QWEN,
        eos="<|im_end|>",
        ends=("<|im_end|>", "<|endoftext|>"),
        parts=_qwen("Qwen3VL"),
        needs=("torchvision",),
    ),
    SeeingFamily(
        name="gemma3",
        specials=("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", *GEMMA_MARKS.values()),
        template=GEMMA,
        eos="<eos>",
        ends=("<eos>", "<end_of_turn>"),
        parts=_gemma,
        bos="<bos>",
        cut=_with_line_breaks,
        named=GEMMA_MARKS,
    ),
    SeeingFamily(
        name="llama4",
        specials=_LLAMA,
        template=LLAMA4,
        eos="<|eot|>",
        ends=("<|eot|>", "<|end_of_text|>"),
        parts=_llama,
        bos="<|begin_of_text|>",
        needs=("torchvision",),
    ),
)
NAMES = tuple(family.name for family in _ALL)
"""The names of all families."""
_THERE = {"torchvision": TORCHVISION, "num2words": num2words_works()}
FAMILIES = {family.name: family for family in _ALL if all(_THERE[name] for name in family.needs)}
"""The families that can be built here, by name."""


class Album:
    """Images by their content, in memory."""

    def __init__(self) -> None:
        self.data: dict[Image, bytes] = {}

    def add(self, width: int, height: int, seed: int = 0) -> Image:
        """A picture of coloured noise in blocks, so that no two are alike."""
        from PIL import Image as Pillow

        draw = torch.Generator().manual_seed(seed)
        small = torch.randint(0, 256, (6, 8, 3), generator=draw, dtype=torch.uint8).numpy()
        picture = Pillow.fromarray(small).resize((width, height), Pillow.Resampling.NEAREST)
        stream = io.BytesIO()
        picture.save(stream, "PNG")
        image = Image(hashlib.sha256(stream.getvalue()).hexdigest(), width, height)
        self.data[image] = stream.getvalue()
        return image

    def read(self, image: Image) -> bytes:
        """The bytes of an image."""
        return self.data[image]

    def pillow(self, image: Image) -> Any:
        """The image as Pillow has it."""
        from PIL import Image as Pillow

        return Pillow.open(io.BytesIO(self.data[image])).convert("RGB")
