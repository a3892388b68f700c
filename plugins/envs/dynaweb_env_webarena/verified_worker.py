"""Runs in the environment of webarena-verified, imports nothing of ours: a question on stdin, a verdict on stdout."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path


def main() -> None:
    """Score one episode."""
    from webarena_verified.api import WebArenaVerified
    from webarena_verified.types.config import WebArenaVerifiedConfig

    logging.disable(logging.CRITICAL)
    question = json.load(sys.stdin)
    scorer = WebArenaVerified(config=WebArenaVerifiedConfig(environments=question["environments"]))
    result = scorer.evaluate_task(
        task_id=question["task_id"], agent_response=question["response"], network_trace=Path(question["har"])
    )
    status = str(getattr(result.status, "value", result.status)).lower()
    parts = [f"{part.evaluator_name} {part.score:g}" for part in result.evaluators_results or ()]
    failed = status == "error"
    why = ", ".join(parts) or status
    print(json.dumps({"score": None if failed else result.score, "why": result.error_msg if failed else why}))


if __name__ == "__main__":
    main()
