"""What the stages of a run share: its context, its models and engines, its artifacts.

context       the run context: recipe, seeds, cache, events
models        base model, engines and world models, loaded once
environments  the environments of a run: tasks, experts, dreams
judge         the recipe's judge, with its weights and its calibration
keys          cache keys of stages, derived from settings and artifacts
artifacts     what finished stages leave, and the hash of weights
episodes      episodes of a stage, batch after batch, kept as they end
fit           supervised updates of a stage, early stopping, low-rank adapters
costs         tokens, time and memory of a stage
session       one job in one run folder: lock, observers, event loop, ranks that join, errors, closing
"""
