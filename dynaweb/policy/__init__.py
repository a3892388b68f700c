"""Prompts, replies and tokens: the one layer between pages and language models."""
