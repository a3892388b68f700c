"""What a recipe will take, before anything is done: memory of each rank, tokens, floating point operations, time.

`shapes` reads how large the model is, `memory` and `work` do the sums, `machine` looks at what is here, and `plan` puts
them together for `dynaweb run --dry-run`. Nothing here imports torch: a plan has to come at once.
"""

from dynaweb.estimate.plan import Estimate, estimate

__all__ = ["Estimate", "estimate"]
