"""A model compares answers by meaning: the judge behind `fuzzy_match` and `N/A`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dynaweb.engines.server import ChatRequest, OpenAIEngine
from dynaweb_env_webarena.upstream import Ungraded

if TYPE_CHECKING:
    from dynaweb.config.server import Server

TOKENS = 768
_VERDICT = re.compile(r"\b(partially correct|incorrect|correct)\b")
_REASON = re.compile(r"\b(same|different)\b")


class MeaningJudge:
    """Asks a server. Page text and answers are data: they stand between marks, and verdicts are single words."""

    def __init__(self, server: Server) -> None:
        self.engine = OpenAIEngine(server)

    async def same_meaning(self, question: str, reference: str, answer: str) -> bool:
        """Whether an answer means the same as the reference. Raises `Ungraded` when the model does not say."""
        reply = await self._ask(
            "Grade a student's answer to a question. Wording does not matter, meaning does. `N/A` means: not "
            "achievable. Reply with one of: correct, incorrect, partially correct.",
            f"question: {question}\nreference answer: {reference}\nstudent's answer:\n<<<\n{answer}\n>>>",
        )
        return _last(_VERDICT, reply) == "correct"

    async def same_reason(self, question: str, reason: str, answer: str) -> bool:
        """Whether an answer gives the real reason why a task cannot be done. Raises `Ungraded`."""
        reply = await self._ask(
            "A task cannot be done, for a known reason. Somebody reported why they could not do it. Reply `same` when "
            "the reported reason agrees with the known one, even if only implied, else `different`.",
            f"task: {question}\nknown reason: {reason}\nreported reason:\n<<<\n{answer}\n>>>",
        )
        return _last(_REASON, reply) == "same"

    async def close(self) -> None:
        """Close the connections."""
        await self.engine.close()

    async def _ask(self, system: str, user: str) -> str:
        messages = (("system", system), ("user", user))
        return (await self.engine.whole_text(ChatRequest(messages, TOKENS, temperature=0.0))).lower()


def _last(pattern: re.Pattern[str], reply: str) -> str:
    verdicts = pattern.findall(reply)
    if not verdicts:
        raise Ungraded(f"the judge gave no verdict: {reply[:120]!r}")
    return str(verdicts[-1])
