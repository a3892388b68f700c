"""Where things of the repository lie, for tests in any folder."""

from pathlib import Path

KITS = Path(__file__).parent
TESTS = KITS.parent
ROOT = TESTS.parent
