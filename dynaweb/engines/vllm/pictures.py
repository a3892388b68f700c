"""Prompts with pictures on their way to vLLM: what goes over, and whether vLLM reads what was written.

Example: a prompt `<fake><row_1_col_1><image>...<fake> What is this?` with one picture goes over as the ids of `<image>
What is this?` and a PNG. vLLM's own processor of the family puts the picture's tokens in; the ids that it reads in the
end come back with the answer and must be those of the prompt, token by token.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dynaweb.errors import EngineError
from dynaweb.protocols import Vision
from dynaweb.types import Prompt

Seen = Mapping[str, Any]
"""`ids`, with a placeholder for each picture, and `images`, PNGs in base 64: what a call carries beside the prompt."""
NEEDED = "0.32"
"""The version of vLLM whose server was seen to take pictures with ids."""


def carried(vision: Vision, prompt: Prompt) -> dict[str, Any]:
    """The pictures of a prompt as JSON holds them. Raises `EngineError` where they do not fit the prompt."""
    pictures = [base64.b64encode(vision.picture(image)).decode() for image in prompt.images]
    return {"ids": list(vision.unexpanded(prompt)), "images": pictures}


def longer(seen: Seen | None, token: int) -> Seen | None:
    """What a prompt with one more token carries."""
    return None if seen is None else {**seen, "ids": [*seen["ids"], token]}


def opened(pictures: Iterable[str]) -> list[Any]:
    """Pictures of a call as vLLM takes them in its own process."""
    import io

    from PIL import Image

    return [Image.open(io.BytesIO(base64.b64decode(one))).convert("RGB") for one in pictures]


def parts(pictures: Iterable[str]) -> list[dict[str, str]]:
    """Pictures of a call as vLLM's server takes them."""
    return [{"type": "image_url", "url": f"data:image/png;base64,{one}"} for one in pictures]


def refuse_other_ids(written: Sequence[int], read: Sequence[int] | None) -> None:
    """Raise `EngineError` unless vLLM read the ids that were written; None: it does not say."""
    if read is None:
        raise EngineError(
            "vLLM does not say which ids it reads for a prompt with pictures, so nobody could see that they are right; "
            f"take vLLM {NEEDED} or newer, or set the engine's name to transformers"
        )
    if list(read) == list(written):
        return
    pairs = zip(written, read, strict=False)
    first = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(written), len(read)))
    raise EngineError(
        f"vLLM reads a prompt with pictures as {len(read)} tokens that differ from the {len(written)} of the trainer, "
        f"the first at place {first} ({_around(written, first)} is {_around(read, first)} there): its processor of "
        "this model's family is not the trainer's, so set the engine's name to transformers"
    )


def _around(ids: Sequence[int], place: int) -> str:
    return str(list(ids[max(0, place - 1) : place + 2]))
