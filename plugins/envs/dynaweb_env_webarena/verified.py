"""Scores with the package webarena-verified, which lives in an environment of its own because of its exact pins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynaweb.runs import sidecar
from dynaweb.types import Judgement
from dynaweb_env_webarena.files import VERIFIED, Raw, kind_of

WORKER = Path(__file__).with_name("verified_worker.py")
SECONDS = 120.0


def response_of(task: Raw, answer: str | None) -> dict[str, Any]:
    """The structured answer that the package expects, from the text of a `stop`.

    Text that is such a structure already (JSON with `task_type`) is taken as it is. Anything else is wrapped: the kind
    of work is the task's own, the outcome SUCCESS, the text the one value that was found.
    """
    answer_data = _structure(answer or "")
    if answer_data is not None:
        return answer_data
    kind = kind_of(task).upper()
    values = [_value(answer)] if kind == "RETRIEVE" and answer else None
    return {"task_type": kind, "status": "SUCCESS", "retrieved_data": values, "error_details": None}


def score(python: Path, task: Raw, answer: str | None, har: Path, urls: Mapping[str, str]) -> Judgement:
    """The package's verdict on an answer and the recorded traffic. Raises `InfrastructureError` when it fails."""
    question = {
        "task_id": task["task_id"],
        "response": response_of(task, answer),
        "har": str(har),
        "environments": {f"__{site.upper()}__": {"urls": [url]} for site, url in urls.items()},
    }
    verdict = sidecar.ask(python, WORKER, question, timeout=SECONDS)
    if verdict["score"] is None:
        return Judgement(None, why=f"{VERIFIED}: {verdict['why']}")
    return Judgement(float(verdict["score"]), why=f"{VERIFIED}: {verdict['why']}")


def _structure(text: str) -> dict[str, Any] | None:
    try:
        answer_data = json.loads(text)
    except ValueError:
        return None
    return answer_data if isinstance(answer_data, dict) and "task_type" in answer_data else None


def _value(text: str | None) -> Any:
    """Numbers as numbers, everything else as it is."""
    try:
        value = json.loads(text or "")
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text
