"""How a model sees: the processor of its family, between images in prompts and what the forward pass takes.

A prompt layer asks for the text that stands for an image (`expansion`), engine and trainer for its pixels (`inputs`).
Both come from the model's own processor, so that ids and pixels are those that it would make of the same turns. What an
image costs in tokens depends on its size alone.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.data.images import as_rgb
from dynaweb.errors import ConfigError, DynawebError, EngineError, ImageError, MissingError
from dynaweb.plugin.discovery import library
from dynaweb.trainer.models import NATIVE, NO_VISION, quiet, sees, unknown_model, without_code
from dynaweb.types import Image, Prompt

if TYPE_CHECKING:
    import torch

EXTRA = "sees"
"""The optional dependencies of models that see."""
SIZES = 64
"""Sizes of images whose texts are remembered."""
RECENT = 8
"""Prompts whose pixels are remembered: rows of a group follow each other."""
TYPES = ("mm_token_type_ids", "token_type_ids")
"""What families call the argument that tells tokens of images from text."""
TEXT = ("input_ids", "attention_mask", *TYPES)
"""What a processor makes of text."""
_PROBE = 64
"""Width and height of an image on which a processor is tried."""


class ModelVision:
    """The processor of the model in a folder, or of a Hugging Face name; `read` gives the bytes of an image.

    The processor is loaded at its first use. Raises `ConfigError` for a model that cannot see or has no processor,
    `MissingError` where the processor needs a package that is not installed.
    """

    def __init__(self, source: str, read: Callable[[Image], bytes]) -> None:
        self.source, self._read = source, read
        config = sees(source)
        if config is None:
            raise ConfigError(NO_VISION.format(source=source))
        ids = [getattr(config, name, None) for name in ("image_token_id", "image_token_index")]
        image_id = next((int(one) for one in ids if one is not None), None)
        if image_id is None:  # Kosmos-2 has no token for a part of an image
            raise ConfigError(NO_VISION.format(source=source))
        self.image_id: int = image_id
        video = getattr(config, "video_token_id", None)
        self.unwritten: tuple[int, ...] = (self.image_id,) if video is None else (self.image_id, int(video))
        self.expansion_of_size = lru_cache(SIZES)(self._expansion)
        self._ids_of_size = lru_cache(SIZES)(self._expanded_ids)
        self._pixels = lru_cache(RECENT)(self._inputs_of)
        self._pictures = lru_cache(RECENT)(self._picture)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self._read)

    @cached_property
    def processor(self) -> Any:
        """The processor of the model's family."""
        library("PIL", EXTRA, what="a model that sees")
        return read_processor(self.source)

    # What prompts are made of.

    @property
    def template(self) -> str:
        """The chat template; '' where the processor has none."""
        template = self.processor.chat_template
        return template if isinstance(template, str) else str((template or {}).get("default", ""))

    @property
    def placeholder(self) -> str:
        """What a chat template writes for an image."""
        return str(self.processor.image_token)

    @property
    def control(self) -> str:
        """Text with every control token of images, so that no page can write one."""
        return self.expansion_of_size(_PROBE, _PROBE) + self.expansion_of_size(32 * _PROBE, 24 * _PROBE)

    def expansion(self, image: Image) -> str:
        """The text, made of control tokens, that stands for an image in a prompt."""
        text: str = self.expansion_of_size(image.width, image.height)
        return text

    def _expansion(self, width: int, height: int) -> str:
        offsets = self._processed(self.placeholder, [_blank(width, height)], return_text_replacement_offsets=True)
        try:
            text = str(offsets["text_replacement_offsets"][0][0]["replacement"])
        except (KeyError, IndexError, TypeError):
            raise ConfigError(
                f"the processor of {self.source} ({type(self.processor).__name__}) does not say what stands for an "
                "image in its prompts; take a newer transformers (5.24 does), or another model"
            ) from None
        if self.image_id not in self._encoded(text):
            raise ConfigError(
                f"the processor of {self.source} ({type(self.processor).__name__}) never writes the token "
                f"{self.image_id}, which config.json there calls an image's: they belong to different models; bring "
                "back the processor and the tokenizer that came with the weights"
            )
        return text

    # What the forward pass takes.

    def inputs(self, prompts: Sequence[Prompt]) -> dict[str, torch.Tensor]:
        """See `dynaweb.protocols.Vision`."""
        parts = [self._pixels(prompt) for prompt in prompts if prompt.images]
        names = list(dict.fromkeys(name for part in parts for name in part))
        return {name: joined([part[name] for part in parts]) for name in names}

    def _inputs_of(self, prompt: Prompt) -> dict[str, torch.Tensor]:
        import torch

        images = [opened(self._read(image), image) for image in prompt.images]
        out = self._processed(self.placeholder * len(images), images, return_tensors="pt")
        wanted, there = (list(ids).count(self.image_id) for ids in (out["input_ids"][0].tolist(), prompt.ids))
        if wanted != there:
            each = sum(self._ids_of_size(image.width, image.height).count(self.image_id) for image in prompt.images)
            if there == each:
                raise EngineError(
                    f"the processor of {self.source} writes other tokens for {len(images)} images together than for "
                    "each of them, and such prompts cannot be written here; show it one at a time (reward.pictures = 1 "
                    "for judges, tasks whose goals have no images), or take another model"
                )
            raise EngineError(
                f"a prompt has {there} tokens of images and its {len(images)} images take {wanted}; it was written for "
                f"another model than {self.source}, or cut within an image"
            )
        return {name: value for name, value in out.items() if name not in TEXT and isinstance(value, torch.Tensor)}

    def token_types(self, ids_BT: torch.Tensor) -> dict[str, torch.Tensor]:
        """See `dynaweb.protocols.Vision`."""
        return {} if self._types is None else {self._types: (ids_BT == self.image_id).long()}

    @cached_property
    def _types(self) -> str | None:
        """The argument that tells tokens of images from text; None where the family has none."""
        out = self._processed(self.placeholder, [_blank(_PROBE, _PROBE)])
        return next((name for name in TYPES if name in out and any(map(any, out[name]))), None)

    def _processed(self, text: str, images: Sequence[Any], **more: Any) -> Any:
        """What the processor makes of a text and its images. Raises `EngineError` where it refuses them."""
        try:
            with quiet():
                return self.processor(text=[text], images=[list(images)], **more)
        except DynawebError:
            raise
        except Exception as error:  # of any family's code
            sizes = ", ".join(f"{image.width}x{image.height}" for image in images)
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise EngineError(f"the processor of {self.source} cannot take images of {sizes} pixels ({why})") from error

    def save_pretrained(self, folder: Path) -> None:
        """Write the processor, tokenizer and template among it, beside the weights in a folder."""
        self.processor.save_pretrained(folder)

    # What engines are given that have a processor of their own.

    def unexpanded(self, prompt: Prompt) -> tuple[int, ...]:
        """See `dynaweb.protocols.Vision`.

        Example: of Gemma's `user\\n\\n\\n<start_of_image>...<end_of_image>\\n\\n` is left `user\\n<start_of_image>`,
        though three line breaks are one token there.
        """
        done: list[int] = []
        rest = list(prompt.ids)
        for image in prompt.images:
            text = self.expansion(image)
            own = self._ids_of_size(image.width, image.height)
            places = (i for i, token in enumerate(rest) if token == own[0])
            start = next((i for i in places if rest[i : i + len(own)] == own), None)
            if start is None:
                raise EngineError(
                    f"the tokens of the image {image.sha256[:12]} ({image.width}x{image.height} pixels) are not in its "
                    f"prompt as {self.source} writes them; it was written for another model, or cut within an image"
                )
            done += self._shorn(rest[:start], text[: len(text) - len(text.lstrip())], at_end=True)
            done += self._placeholder_ids
            rest = self._shorn(rest[start + len(own) :], text[len(text.rstrip()) :], at_end=False)
        if self.image_id in rest:
            raise EngineError(f"a prompt with {len(prompt.images)} images has tokens of more images than these")
        return (*done, *rest)

    def _expanded_ids(self, width: int, height: int) -> list[int]:
        """What stands for an image of a size, without the space around it, which may be of one token with the text."""
        return self._encoded(self.expansion_of_size(width, height).strip())

    @cached_property
    def _placeholder_ids(self) -> list[int]:
        return self._encoded(self.placeholder)

    def _encoded(self, text: str) -> list[int]:
        return list(self.processor.tokenizer(text, add_special_tokens=False).input_ids)

    def _shorn(self, ids: list[int], text: str, *, at_end: bool) -> list[int]:
        """Ids without a text at one of their ends, where it may be a part of a token."""
        for count in range(1, len(text) + 1 if text else 0):
            part = ids[-count:] if at_end else ids[:count]
            said = self.processor.tokenizer.decode(part)
            if said.endswith(text) if at_end else said.startswith(text):
                left = self._encoded(said.removesuffix(text) if at_end else said.removeprefix(text))
                return [*ids[:-count], *left] if at_end else [*left, *ids[count:]]
        return ids

    def picture(self, image: Image) -> bytes:
        """See `dynaweb.protocols.Vision`."""
        data: bytes = self._pictures(image)
        return data

    def _picture(self, image: Image) -> bytes:
        from PIL import Image as Pillow

        found = opened(self._read(image), image)
        stream = io.BytesIO()
        # Made anew: a colour that counts as transparent, or a profile, would be read by some and not by others.
        Pillow.frombytes("RGB", found.size, found.tobytes()).save(stream, "PNG", compress_level=1)
        return stream.getvalue()

    def example(self, image: Image) -> Prompt:
        """See `dynaweb.protocols.Vision`."""
        turns = [{"role": "user", "content": [{"type": "image"}]}]
        with quiet():
            text = self.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return Prompt(tuple(self._encoded(text.replace(self.placeholder, self.expansion(image)))), (image,))

    def reading(self, read: Callable[[Image], bytes]) -> ModelVision:
        """See `dynaweb.protocols.Vision`."""
        other = type(self)(self.source, read)
        other.processor = self.processor
        return other


def read_processor(source: str) -> Any:
    """The processor of a folder or a Hugging Face name, which needs no code that comes with the model.

    Raises `ConfigError` where there is none, `MissingError` for packages that it needs, `CheckpointError` for a folder
    whose processor cannot be read.
    """
    try:
        from transformers import AutoProcessor, ProcessorMixin

        load: Any = AutoProcessor.from_pretrained
        with quiet(), without_code(source):
            processor = load(source, **NATIVE)
    except (ImportError, RuntimeError) as error:  # torchvision that was built for another torch raises the latter
        needs = str(error).strip().splitlines()[0]
        raise MissingError(
            f"the processor of {source} needs a package that is not installed, or not for this torch ({needs}); run: "
            f"pip install 'dynaweb[{EXTRA}]'"
        ) from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        if not _has_processor(source):
            raise _without_processor(source) from error
        raise unknown_model(source, Path(source).is_dir(), error) from error
    if not isinstance(processor, ProcessorMixin) or getattr(processor, "image_token", None) is None:
        raise _without_processor(source)
    return processor


def _has_processor(source: str) -> bool:
    """Whether a folder holds the documents of a processor; of a name nobody knows, so it is said to."""
    names = ("processor_config.json", "preprocessor_config.json")
    return not Path(source).is_dir() or any((Path(source) / name).is_file() for name in names)


def _without_processor(source: str) -> ConfigError:
    return ConfigError(
        f"the model {source} has no processor (processor_config.json or preprocessor_config.json beside its weights), "
        "so that nobody knows how it sees; put its processor into the folder, or set observation.modality = text"
    )


def opened(data: bytes, image: Image) -> Any:
    """An image of Pillow in RGB, on white where it is transparent. Raises `ImageError` for bytes that are no picture,
    or one of another size."""
    from PIL import Image as Pillow

    try:
        picture = as_rgb(Pillow.open(io.BytesIO(data)))
    except Exception as error:  # the library raises what it likes at a damaged file
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ImageError(f"the image {image.sha256[:12]} cannot be read as a picture ({why}); take it again") from error
    if picture.size != (image.width, image.height):
        raise ImageError(
            f"the image {image.sha256[:12]} has {picture.width}x{picture.height} pixels, and the prompt says "
            f"{image.width}x{image.height}; it belongs to another observation"
        )
    return picture


def _blank(width: int, height: int) -> Any:
    from PIL import Image as Pillow

    return Pillow.new("RGB", (width, height), "white")


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors one after the other along their first axis; the others are filled with zeros up to the longest."""
    import torch
    import torch.nn.functional as F

    width = [max(part.shape[axis] for part in parts) for axis in range(1, parts[0].dim())]
    filled = []
    for part in parts:
        missing = [width[axis - 1] - part.shape[axis] for axis in range(1, part.dim())]
        pads = [pad for amount in reversed(missing) for pad in (0, amount)]
        filled.append(F.pad(part, pads) if any(pads) else part)
    return torch.cat(filled)
