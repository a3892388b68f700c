"""Token generation in this process, from the top down.

It works on the trainer's own weights, so nothing is pushed: `sessions` sees by their versions that they are new.
`engine` takes the batches of the scheduler, computes equal requests once and decodes. `sessions` are batches that are
being decoded, by a compact Llama forward (`llama` the weights and blocks, `decoding` prefill and steps) or by any model
of transformers. `architecture` reads and tries what such a model does, before rows are padded or packed; a model that
cannot generate right is refused. `sharing` finds what prompts have in common, `sampling` draws tokens that depend on a
request's own seed only, and `recording` makes steps of fixed shape fast on a GPU.
"""
