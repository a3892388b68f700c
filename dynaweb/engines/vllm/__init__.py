"""vLLM as an engine, from a model's side to vLLM's own.

- `engine` is the engine of one model: requests, new weights.
- `probe` compares what trainer and vLLM say of fixed tokens, after each transfer.
- `shared` is the vLLM of a run, which models of one architecture use in turn: started once, awake when it is asked.
- `process` starts, calls and ends vLLM's process; `host` is what runs in there, and `worker` what vLLM's workers get.
- `weights` writes weights and adapters as vLLM takes them.

`host` and `worker` are imported by vLLM's processes alone, the others never import vLLM.
"""
