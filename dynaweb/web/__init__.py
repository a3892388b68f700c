"""Reading pages as accessibility trees, saying what changed, acting on them, and surviving real pages.

`session` says what acts on pages and `browser` does it in Chromium (`tree` reads it, `view` condenses it); `dialects`
writes an observation as text and reads it back; `actions` parses what a policy says; `evaluators` checks the outcome.
Nothing here needs torch. Only `browser` and `chromium` touch Playwright, and only when a browser is started.
"""
