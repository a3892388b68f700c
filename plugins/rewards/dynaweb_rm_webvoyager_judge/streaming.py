"""A server whose replies may be streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynaweb.engines.server import WHOLE, ChatRequest, OpenAIEngine

if TYPE_CHECKING:
    from dynaweb.config.server import Server


class StreamingEngine(OpenAIEngine):
    """An `OpenAIEngine` that reads replies as streams where that is wanted."""

    def __init__(self, server: Server, *, stream: bool = False) -> None:
        super().__init__(server)
        self._stream = stream

    async def verdict(self, request: ChatRequest) -> str:
        """The text of one reply; '' for one that was cut. Raises as `chat` does."""
        return await self._streamed(request) if self._stream else await self.whole_text(request)

    async def _streamed(self, request: ChatRequest) -> str:
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
                raise self._as_error(error, request) from None
        return "".join(parts) if end in WHOLE else ""
