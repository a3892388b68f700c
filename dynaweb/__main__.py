"""`python -m dynaweb`."""

from __future__ import annotations

from dynaweb.cli import main

if __name__ == "__main__":
    main()
