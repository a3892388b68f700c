"""The shop: its `state` with the generated content, its `pages`, and its `tasks`."""
