"""Engines turn prompts into tokens.

`scheduler` gathers the requests of concurrent episodes into batches that are the same in every run, `sampling` draws
tokens that depend on a request's own seed only, `llama` is a compact forward for Llama-type models, `generic` serves any
other Hugging Face causal language model, and `transformers_engine` puts these together. Import the modules themselves:
this package file stays free of torch.
"""
