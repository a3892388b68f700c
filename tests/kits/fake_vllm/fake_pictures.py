"""How a stand-in for vLLM reads pictures: by the processor of transformers, which knows nothing of the project's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TEXT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")


def read(processor: Any, ids: Sequence[int], images: Sequence[Any], *, other: bool = False) -> tuple[list[int], Any]:
    """The ids of a prompt with the tokens of its images, and the other inputs of a model. `other`: a processor of
    another version, which writes one token less for each."""
    mark = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    left, out = iter(images), list[int]()
    for token in ids:
        if token != mark:
            out.append(token)
            continue
        own = processor(text=[processor.image_token], images=[[next(left)]])["input_ids"][0]
        out += own[:-1] if other else own
    assert next(left, None) is None, "a picture without a placeholder"
    inputs = processor(text=[processor.image_token * len(images)], images=[list(images)], return_tensors="pt")
    return out, {name: value for name, value in inputs.items() if name not in TEXT}


class Remembered:
    """What pictures look like to weights that see, kept by picture until it is forgotten, as vLLM does."""

    def __init__(self) -> None:
        self._weights: dict[bytes, dict[str, Any]] = {}

    def weights(self, images: Sequence[Any], now: dict[str, Any]) -> dict[str, Any]:
        """The weights, with those that see as they were when the images were seen first."""
        key = b"".join(image.tobytes() for image in images)
        kept = {name: value.clone() for name, value in now.items() if "vision" in name or "connector" in name}
        return now | self._weights.setdefault(key, kept)

    def forget(self) -> None:
        """As after new weights."""
        self._weights.clear()
