"""Pages as accessibility trees: reading them, acting on them, saying what changed, and surviving real ones.

`session` says what acts on pages; `chromium` does it in a browser, `static` without one. `page` turns a raw tree into
an observation (`view`), writes it as text and reads it back (`text`); `actions` parses what a policy says;
`delta` says what changed between two observations; `evaluators` check the outcome.
Nothing here needs torch. Only `chromium` touches Playwright, and only when a browser is started.
"""
