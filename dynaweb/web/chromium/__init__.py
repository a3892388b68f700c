"""Sessions in a real browser.

`install` finds Chromium, `pool` starts it (`browser`) and hands out a `session` per episode, each in a `context` of its
own with its `tab`s, `downloads` and `logins`. A session reads pages (`read`, `layout`) and acts on them (`act`,
`scripts`) through DevTools commands (`devtools`). Only `install`, `browser` and `pool` may be imported where Playwright
is missing.
"""
