"""vLLM as an engine: `engine` speaks with its processes and probes them, `weights` is the way of new weights there."""
