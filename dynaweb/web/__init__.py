"""Reading pages as accessibility trees, saying what changed, acting on them, and surviving real pages.

`session` says what acts on pages and `browser` does it in Chromium: `reading` reads all frames of a `tab` (`tree`,
`layout`), `view` and `view_benchmarks` condense them, `acting` acts on nodes, `logins` keeps sessions signed in.
`dialects` writes an observation as text and reads it back; `actions` parses what a policy says, in five grammars;
`delta` says what changed; `evaluators` checks the outcome.
Nothing here needs torch. Only `browser` and `chromium` touch Playwright, and only when a browser is started.
"""
