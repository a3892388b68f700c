"""Settings of an OpenAI-compatible server, for every plugin that can use one."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from dynaweb.masking import Secret


class Server(BaseModel):
    """A model behind an OpenAI-compatible `/chat/completions` (vLLM, SGLang, llama.cpp, Ollama, a vendor).

    The key is read from the environment only; recipes, run folders and logs never hold it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {"key_variable", "concurrency", "timeout", "retries", "price_in", "price_out"}
    )
    """Settings that say how, and at what price, but not what is answered: no result depends on them."""

    model: str = ""
    """Name of the model on the server, such as `openai/gpt-oss-120b`; empty = no server, the run's own model."""
    base_url: str = ""
    """Address of the API, such as `http://localhost:8000/v1`; empty = OpenAI's, whatever `OPENAI_BASE_URL` says."""
    key_variable: Annotated[str, Secret("variable")] = "OPENAI_API_KEY"
    """Environment variable that holds the key. Servers on this machine need none, and are asked without a proxy."""
    concurrency: int = Field(default=16, ge=1)
    """Requests in flight at once."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds that one request may take."""
    retries: int = Field(default=5, ge=0)
    """Further attempts after a failure that may pass (busy, overloaded, unreachable), with growing pauses."""
    logprobs: bool = True
    """Ask for log-probabilities, which the adaptive horizon of dreams needs."""
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls the limit of new tokens."""
    reasoning_effort: str = ""
    """How long a reasoning model thinks, in the server's words, such as `low`; empty = the server's default."""
    reasoning_tokens: int = Field(default=0, ge=0)
    """Tokens that a reasoning model may spend on thought, beside those of the answer: most servers count both."""
    headers: Annotated[dict[str, str], Secret("headers")] = Field(default_factory=dict)
    """Further headers of each request; `$NAME` stands for an environment variable, so that no file holds a secret."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request that this server knows, such as `extra_body.top_k = 20`."""
    price_in: float = Field(default=0.0, ge=0)
    """Price of a million prompt tokens, in any currency, for the cost counter."""
    price_out: float = Field(default=0.0, ge=0)
    """Price of a million new tokens."""
