"""How an episode is graded: repaired, upstream, or by webarena-verified."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.config.files import MALFORMED
from dynaweb.errors import InfrastructureError
from dynaweb.runs import sidecar
from dynaweb.types import Judgement, Trajectory
from dynaweb.web.evaluators import equals, evaluate
from dynaweb_env_webarena import functions, upstream, verified
from dynaweb_env_webarena.images import SeeingJudge, page_image_query
from dynaweb_env_webarena.judge import MeaningJudge

if TYPE_CHECKING:
    from dynaweb.web.session import Session
    from dynaweb_env_webarena import WebarenaConfig
    from dynaweb_env_webarena.copies import Copy

FUZZY = "fuzzy_match"


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:120]}"


class Grader:
    """Grades by the configured evaluator."""

    def __init__(self, config: WebarenaConfig) -> None:
        self.config = config
        self._judge = MeaningJudge(config.judge) if config.judge.model else None
        self._seeing = SeeingJudge(config.seeing) if config.seeing.model else None
        task_files = [Path(path) for path in (config.path, config.validation, config.train) if path]
        # Where files that evaluations name are looked for.
        self._folders = [*(path if path.is_dir() else path.parent for path in task_files), Path()]

    async def grade(self, trajectory: Trajectory, session: Session, har: Path | None, copy: Copy) -> Judgement:
        """The verdict on an episode. One without `stop` has failed, except that upstream grades it as it stands.

        `copy` is the copy of the sites that it was played on. A task whose `eval` cannot be followed is not graded.
        """
        try:
            return await self._graded(trajectory, session, har, copy)
        except MALFORMED as error:
            return Judgement(None, why=f"the eval of the task is not of WebArena's form ({_sentence(error)})")

    async def _graded(self, trajectory: Trajectory, session: Session, har: Path | None, copy: Copy) -> Judgement:
        upstreams = self.config.evaluator == "upstream"
        if trajectory.final is None or (trajectory.answer is None and not upstreams):
            return Judgement(0.0, why=f"the episode was not ended by stop ({trajectory.end})")
        if self.config.evaluator == "verified":
            return await self._verified(trajectory, har, copy)
        url = trajectory.final.url
        try:
            evaluation = await self._plain(trajectory.task.evaluation, url, copy.urls)
        except InfrastructureError as error:
            return Judgement(None, why=str(error))
        if upstreams:
            return await upstream.evaluate(
                evaluation,
                intent=trajectory.task.intent,
                answer=trajectory.answer,
                url=url,
                session=session,
                judge=self._judge,
            )
        return await self._repaired(evaluation, trajectory, url, session)

    async def close(self) -> None:
        """Close the judge's connections."""
        for judge in (self._judge, self._seeing):
            if judge is not None:
                await judge.close()

    async def _plain(self, evaluation: Mapping[str, Any], url: str, urls: Mapping[str, str]) -> dict[str, Any]:
        targets = evaluation.get("program_html") or ()
        located = [await functions.resolved(target, url=url, urls=urls) for target in targets]
        queries = [dict(query) for query in evaluation.get("page_image_query") or ()]
        for query in queries:
            named = {"url": query["eval_image_url"], "locator": ""}
            query["eval_image_url"] = (await functions.resolved(named, url=url, urls=urls))["url"]
        return {**evaluation, "program_html": located, **({"page_image_query": queries} if queries else {})}

    async def _repaired(
        self, evaluation: Mapping[str, Any], trajectory: Trajectory, url: str, session: Session
    ) -> Judgement:
        references = dict(evaluation.get("reference_answers") or {})
        answer, intent = trajectory.answer or "", trajectory.task.intent
        extra: dict[str, Any] = {
            "page_image_query": lambda spec: page_image_query(
                spec["page_image_query"], session, self._seeing, self._folders
            )
        }
        if self._judge is not None and FUZZY in references:
            # The core's evaluators know no judge: this part becomes a type of its own.
            wanted, note = references.pop(FUZZY), str(evaluation.get("string_note") or "")
            extra[FUZZY] = lambda _: self._fuzzy(wanted, note, intent, answer)
            kinds = [kind for kind in evaluation["eval_types"] if kind != "string_match" or references]
            evaluation = {**evaluation, "eval_types": [*kinds, FUZZY], "reference_answers": references}
        return await evaluate(
            evaluation,
            answer=answer,
            url=url,
            session=session,
            extra=extra,
            meaning=partial(self._means, intent) if self._judge is not None else None,
        )

    async def _means(self, intent: str, reference: str, text: str) -> Judgement:
        assert self._judge is not None  # `_repaired` has looked
        try:
            good = await self._judge.same_meaning(intent, reference, text)
        except upstream.Ungraded as error:
            return Judgement(None, why=str(error))
        return Judgement(float(good), why="the judge agrees" if good else "the judge does not agree")

    async def _fuzzy(self, wanted: Any, note: str, intent: str, answer: str) -> Judgement:
        assert self._judge is not None  # `_repaired` has looked
        try:
            if wanted == "N/A":
                good = equals("N/A", answer) or await self._judge.same_reason(intent, note, answer)
            else:
                parts = wanted if isinstance(wanted, list) else [wanted]
                good = all(
                    [equals(part, answer) or await self._judge.same_meaning(intent, part, answer) for part in parts]
                )
        except upstream.Ungraded as error:
            return Judgement(None, why=str(error))
        return Judgement(float(good), why="the judge agrees" if good else "the judge does not agree")

    async def _verified(self, trajectory: Trajectory, har: Path | None, copy: Copy) -> Judgement:
        if har is None or not har.exists():
            return Judgement(None, why="the traffic of the episode was not recorded")
        python = sidecar.python_of("webarena-verified", self.config.verified_python)
        raw = trajectory.task.meta["raw"]
        # The recorded traffic has the addresses of the copy.
        answer = None if trajectory.answer is None else copy.real(trajectory.answer)
        return await asyncio.to_thread(verified.score, python, raw, answer, har, copy.urls)
