"""Stop texts: where in a sequence of tokens the first of them is complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dynaweb.errors import EngineError
from dynaweb.protocols import Completion, GenerateRequest

Decode = Callable[[list[int]], str]


def need_decoder(request: GenerateRequest, decode: Decode | None) -> None:
    """Raise `EngineError` for stop texts where nobody can read tokens."""
    if request.stop and decode is None:
        raise EngineError("stop texts need an engine that knows the tokenizer; use stop_ids")


def complete(tokens: Sequence[int], stop: Sequence[str], decode: Decode) -> bool:
    """Whether the text of the tokens holds a stop text."""
    text = decode(list(tokens))
    return any(word in text for word in stop)


def cut(completion: Completion, stop: Sequence[str], decode: Decode) -> Completion:
    """A completion up to the token that completes a stop text; the whole of it where there is none."""
    tokens = completion.token_ids
    if not stop or not complete(tokens, stop, decode):
        return completion
    # Once complete, a text stays complete, so halving finds the first token.
    low, high = 1, len(tokens)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if complete(tokens[:middle], stop, decode) else (middle + 1, high)
    return replace(completion, token_ids=tokens[:low], logprobs=completion.logprobs[:low], finished=True)
