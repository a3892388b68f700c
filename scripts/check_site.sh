#!/usr/bin/env bash
# The documentation site: built strictly, then every internal link and anchor of it followed.
# Usage: scripts/check_site.sh [FOLDER]    FOLDER keeps the site (default: a temporary one).
# Needs `pip install -e '.[docs]'`, or makes an environment with these packages in .nightly/site. Where the package index
# does not have them, it says so and is content.
set -euo pipefail
cd "$(dirname "$0")/.."

out="${1:-$(mktemp -d)/site}"
python=.venv/bin/python
[ -x "$python" ] || python=python3
ready() { "$1" -c 'import material, mkdocs, mkdocs_jupyter, mkdocstrings_handlers.python, mike' 2>/dev/null; }

if ! ready "$python"; then
  env=.nightly/site
  # What the extra asks for, without dynaweb: the pages are made of its source.
  mapfile -t wanted < <("$python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["docs"], sep="\n")')
  if ! ready "$env/bin/python"; then
    "$python" -m venv --clear "$env"
    uv="$(dirname "$python")/uv"
    { [ -x "$uv" ] && "$uv" pip install -q --python "$env/bin/python" -c constraints.txt "${wanted[@]}"; } ||
      "$env/bin/pip" install -q -c constraints.txt "${wanted[@]}" ||
      { echo "the package index lacks MkDocs' packages: the site is not checked" >&2; exit 0; }
  fi
  python="$env/bin/python"
fi

log="$(mktemp)"
trap 'rm -f "$log"' EXIT
# Announcements of the theme's makers are no warnings about these pages.
export NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=
"$python" -m mkdocs build --strict --quiet --site-dir "$out" 2>"$log" || { cat "$log" >&2; echo "the site does not build" >&2; exit 1; }
if grep -qE "WARNING|ERROR" "$log"; then
  cat "$log" >&2
  echo "the site builds with the warnings above" >&2
  exit 1
fi
"$python" scripts/check_links.py "$out"
