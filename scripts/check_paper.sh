#!/usr/bin/env bash
# A paper's main table and three figures from raw results, by two commands, compiled to PDF with LaTeX (Debian: texlive).
# Usage: scripts/check_paper.sh [FOLDER]    FOLDER keeps paper.pdf; without LaTeX it says so and is content.
set -euo pipefail
cd "$(dirname "$0")/.."

dynaweb="${DYNAWEB:-.venv/bin/dynaweb}"
[ -x "$dynaweb" ] || dynaweb=dynaweb
out="${1:-$(mktemp -d)}"
mkdir -p "$out"

"$dynaweb" matrix table results/example.jsonl.gz --measure main,real_steps --to latex >"$out/table.tex"
"$dynaweb" matrix figure results/example.jsonl.gz --to pdf --width 120mm --font serif:9 --out "$out/figures" >/dev/null
cp examples/paper/paper.tex "$out/"

if ! command -v pdflatex >/dev/null || ! kpsewhich booktabs.sty lmodern.sty microtype.sty >/dev/null; then
  echo "no LaTeX here (apt-get install texlive-latex-recommended lmodern): the table and figures are made, not compiled" >&2
  exit 0
fi
for pass in 1 2; do
  (cd "$out" && pdflatex -interaction=nonstopmode -halt-on-error paper.tex >"pass-$pass.txt") ||
    { tail -n 30 "$out/pass-$pass.txt" >&2; echo "paper.tex does not compile" >&2; exit 1; }
done
# What LaTeX warns of would be seen in print: labels that are missing, lines that leave their column.
if grep -E "undefined|Overfull|Missing character" "$out/pass-2.txt"; then
  echo "the paper compiles with the warnings above" >&2
  exit 1
fi
if command -v pdffonts >/dev/null; then
  if pdffonts "$out/paper.pdf" | tail -n +3 | grep -E "Type 3|\bno +(yes|no) +(yes|no)\b"; then
    echo "a font of the paper is no outline, or is not embedded" >&2
    exit 1
  fi
fi
echo "$out/paper.pdf: $(grep -o 'Output written.*' "$out/pass-2.txt" | head -n 1)"
