"""Sessions without a browser: HTML and its tree (`dom`), its `forms`, and the `session` that plays them."""
