"""`dynaweb new plugin` and `dynaweb new recipe`: beginnings of one's own.

`writing` writes a package with a working plugin whose tests are green from the beginning, `recipe` a recipe.

Templates are the files under `templates/`: `common/` for every kind, one folder for each kind.
"""

from __future__ import annotations

from dynaweb.scaffold.writing import KINDS, full_kind, new_plugin

__all__ = ["KINDS", "full_kind", "new_plugin"]
