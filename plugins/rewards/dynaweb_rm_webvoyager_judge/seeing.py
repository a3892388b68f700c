"""A server that is shown pictures, and may stream its reply."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynaweb.engines.server import WHOLE, ChatRequest, OpenAIEngine

if TYPE_CHECKING:
    from dynaweb.config.server import Server


@dataclass(frozen=True, slots=True)
class LookRequest(ChatRequest):
    """A question with pictures (PNG) that belong to its last message."""

    images: tuple[bytes, ...] = ()


class SeeingEngine(OpenAIEngine):
    """An `OpenAIEngine` for `LookRequest`s."""

    def __init__(self, server: Server, *, stream: bool = False) -> None:
        super().__init__(server)
        self._stream = stream

    async def look(self, request: LookRequest) -> str:
        """The text of one reply; '' for one that was cut. Raises as `chat` does."""
        return await self._streamed(request) if self._stream else await self.whole_text(request)

    async def _streamed(self, request: LookRequest) -> str:
        client, limit = self._connected()
        parts: list[str] = []
        end = None
        async with limit:
            self.stats.requests += 1
            try:
                stream = await client.chat.completions.create(stream=True, **self._arguments(request))
                async for chunk in stream:
                    for choice in chunk.choices:
                        parts.append(choice.delta.content or "")
                        end = choice.finish_reason or end
            except Exception as error:
                self.stats.failures += 1
                raise self._as_error(error) from None
        return "".join(parts) if end in WHOLE else ""

    def _arguments(self, request: ChatRequest) -> dict[str, Any]:
        given = super()._arguments(request)
        # A verdict is a word: nobody reads the probabilities, and many multimodal servers refuse to tell them.
        for name in ("logprobs", "top_logprobs"):
            given.pop(name, None)
        images = request.images if isinstance(request, LookRequest) else ()
        if images:
            last = given["messages"][-1]
            last["content"] = [{"type": "text", "text": last["content"]}, *map(_picture, images)]
        return given


def _picture(data: bytes) -> dict[str, Any]:
    text = base64.b64encode(data).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
