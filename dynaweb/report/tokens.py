"""Token ids of a run as text, by the tokenizer that stands with its weights; no model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

TokenTexts = Callable[[Sequence[int]], list[str]]
"""The text of each of some token ids."""


def token_texts(folder: Path) -> TokenTexts | None:
    """How the policy of a run folder reads token ids; None where no tokenizer is there, or none that can be read."""
    paths = sorted((folder / "checkpoints").glob("*/tokenizer.json"), key=lambda path: path.parent.name != "sft")
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(paths[0]))
    except Exception:  # the library raises what it likes, and numbers do where there is no text
        return None
    return lambda ids: [tokenizer.decode([one], skip_special_tokens=False) for one in ids]
