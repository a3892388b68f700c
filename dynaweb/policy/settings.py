"""What a prompt layer is told: how the model ends a reply, how much room it has, and the prompt that a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dynaweb.errors import ConfigError
from dynaweb.policy.prompt_file import PromptFile
from dynaweb.types import Prompt

if TYPE_CHECKING:
    from dynaweb.protocols import Vision

Modality = Literal["text", "screenshot", "both"]


def uncounted(prompt: Prompt) -> None:
    """Takes a prompt that nobody counts."""


AS_IT_IS = PromptFile()
"""No file: the prompt of the prompt layer."""


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """What a prompt layer is told of its model and of the recipe. All lengths are in tokens; 0 = nobody said.

    `ends`: ids that end a reply by the model's `generation_config`. `template`: arguments of the chat template; None =
    those of `dynaweb.policy.template`. `context`: positions of the model, prompt and answer together. `file`: the
    prompt of the policy, where a recipe names one.
    """

    ends: tuple[int, ...] = ()
    template: Mapping[str, Any] | None = None
    context: int = 0
    file: PromptFile = AS_IT_IS
    policy_prompt: int = 0
    """Longest prompt of the policy; 0 = as `prompt`."""
    policy_reply: int = 0
    """Longest reply of the policy."""
    prompt: int = 0
    """Longest prompt of world model and judge."""
    reply: Callable[[], int] = int
    """Longest answer of the world model; asked for when a prompt of it, or of a judge, is written."""
    on_prompt: Callable[[Prompt], None] = uncounted
    """Called with every prompt that is written, so that a run can count those that were cut."""
    modality: Modality = "text"
    """What the policy sees of a page: its text, its screenshot, or both."""
    vision: Vision | None = None
    """How the model sees; None for one that reads text alone."""

    def room(self, most: int, *, policy: bool = False) -> int:
        """Longest prompt: as set, else what the model has room for beside the answer, and `most` at most.

        Raises `ConfigError` when the model has no room for what is set.
        """
        wanted = (policy and self.policy_prompt) or self.prompt
        if not self.context:
            return wanted or most
        answer = self.policy_reply if policy else self.reply()
        left = self.context - answer
        if max(wanted, 1) > left:
            role = "policy" if policy else "model"
            longest = "policy.max_new_tokens" if policy else "wm.max_new_tokens"
            raise ConfigError(
                f"the model has {self.context} positions, and a prompt of {wanted or 'any'} tokens with an answer of "
                f"{answer} does not fit into them; lower {role}.max_prompt_tokens or {longest}, or choose another model"
            )
        return wanted or min(most, left)


PLAIN = PromptSettings()
"""Nobody said anything."""
