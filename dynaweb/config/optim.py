"""Settings that several policy optimizers share, for their configs to derive from; light, like all of `config`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dynaweb.config.sections import Section

Aggregation = Literal["traj_mean_token_mean", "token_mean", "constant", "traj_mean_token_sum"]
"""Weight of an agent token, with n_i agent tokens in trajectory i and N trajectories that have any:
1 / (N n_i); 1 / sum of n_i; 1 / (N x a chosen constant); 1 / N."""


class TokenWeights(Section):
    """How much an agent token counts in a sum over tokens (`dynaweb.trainer.losses.Tokens.weight_RT`)."""

    agg: Aggregation = "token_mean"
    """Weight of a token: 1/(N n_i), 1/(all tokens), 1/(N norm_const), 1/N; n_i = tokens of its trajectory, of N."""
    norm_const: float | None = Field(default=None, gt=0)
    """The constant of `agg = "constant"` (Dr. GRPO): a number you choose, such as the longest trajectory in tokens."""

    @model_validator(mode="after")
    def _check_constant(self) -> Self:
        if (self.agg == "constant") != (self.norm_const is not None):
            raise ValueError('norm_const belongs to agg = "constant": give both or neither')
        return self


class GroupBaseline(Section):
    """How far a reward is above its group (`dynaweb.trainer.advantages.normalised`)."""

    scale: Literal["group", "batch", "none"] = "group"
    """Advantages are divided by the standard deviation of the group, of the batch, or not at all."""
    eps: float = Field(default=1e-4, ge=0)
    """Added to that standard deviation."""
    ddof: Literal[0, 1] = 1
    """1 = unbiased standard deviation, 0 = of the population."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of a trajectory that is alone in its group: 0, or its reward."""
    zero_var_tol: float = Field(default=1e-6, ge=0)
    """A group whose rewards differ by no more than this is dead: its advantages are exactly 0."""
