"""Policies behind a server are evaluated like any other: `dynaweb eval --policy server:NAME`."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_server import Raw, chat_server

from dynaweb import api
from dynaweb.errors import ConfigError, MissingError

pytest.importorskip("openai")
SMALL = ("env.task_settings.driver=static", "eval.episodes=4", "eval.steps=2", "model.threads=1")


def test_a_policy_behind_a_server_is_asked_in_words(tmp_path: Path) -> None:
    """A broken reply costs a step of its episode, and the evaluation goes on."""
    with chat_server("REASON: done\nACTION: stop [x]", Raw(b"<html>"), "REASON: done\nACTION: stop [x]") as server:
        sets = (*SMALL, f"policy.server.base_url={server.url}", "policy.server.retries=0", "policy.max_new_tokens=64")
        result = api.evaluate("smoke", policy="server:gpt-x", overrides=sets, out=tmp_path / "run")
        again = api.evaluate("smoke", policy="server:gpt-x", overrides=sets, out=tmp_path / "again")
        asked = list(server.requests)
        api.evaluate("smoke", policy="server:gpt-y", overrides=sets, out=tmp_path / "other")
        warmer = (*sets, "policy.server.reasoning_effort=high")
        api.evaluate("smoke", policy="server:gpt-y", overrides=warmer, out=tmp_path / "warmer")
    effort = [request.get("reasoning_effort") for request in server.requests if request["model"] == "gpt-y"]
    assert set(effort) == {None, "high"}  # another model and another setting are other results
    assert result.metrics["graded"] == 4 and again.metrics == result.metrics
    assert len(asked) <= 5 and asked[0]["model"] == "gpt-x" and asked[0]["max_tokens"] == 64
    system, user = asked[0]["messages"]
    assert (
        system["role"] == "system" and "PREVIOUS ACTIONS:\nnone" in user["content"] and "\nPAGE:\n" in user["content"]
    )


def test_names_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="server:MODEL"):
        api.evaluate("smoke", policy="server:", overrides=SMALL, out=tmp_path / "run")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(MissingError, match="OPENAI_API_KEY"):
        api.evaluate("smoke", policy="server:x", overrides=SMALL, out=tmp_path / "other")
