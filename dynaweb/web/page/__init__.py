"""An observation of a page: from Chromium's raw accessibility tree (`tree`) through a `view` to `text` and back."""
