"""The mail service: its `state` with the generated content, its `pages`, and its `tasks`."""
