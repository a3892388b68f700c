#!/usr/bin/env bash
# What needs packages of its own, on a machine without a GPU: vLLM generates, takes new weights and passes the probe, in
# an environment of its own; runs in two processes, with DeepSpeed too, give what one process gives, and end when a rank
# fails; runs over a Ray cluster are placed anew when one does; runs and matrices that are stopped 40 times by three
# signals end like those that are not; every family of chat models goes through a run; every parser is given 100,000
# characters of each token of its grammar.
#   scripts/nightly_engines.sh [FOLDER [PYTHON]]
# FOLDER keeps the environments for the next time (default: .nightly). They lie over that of PYTHON, which has dynaweb and
# its tests (default: .venv/bin/python).
set -euo pipefail
cd "$(dirname "$0")/.."
place="$(realpath -m "${1:-.nightly}")"
python="$(realpath -s "${2:-.venv/bin/python}")"
"$python" -c 'import dynaweb, torch' || { echo "$python has no dynaweb: see README's test command" >&2; exit 1; }
mkdir -p "$place"
. scripts/engines.sh
failed=0

for name in vllm deepspeed; do
  [ -f "$place/$name/ready" ] || "${name}_environment" "$place/$name" "$python"
done
[ -f "$place/ray/ready" ] || ray_environment "$place/ray" "$place/vllm/bin/python"

echo "==> vLLM on CPU"
check_vllm "$place/vllm" --adapters || failed=1

echo "==> several processes"
with_deepspeed "$place/deepspeed" scripts/check_ranks.py || failed=1
with_deepspeed "$place/deepspeed" -m pytest -q tests/trainer/test_backend_sharded.py || failed=1

echo "==> a Ray cluster"
"$place/ray/bin/python" scripts/check_ray.py --vllm "$place/vllm/bin/python" || failed=1

echo "==> killed and resumed"
"$python" scripts/check_resume.py --kills 40 || failed=1

echo "==> long texts"
DYNAWEB_TEXT_SIZE=100000 "$python" -m pytest -q tests/test_linear_parsers.py || failed=1

echo "==> families of chat models"
"$python" benchmarks/families.py || failed=1
exit "$failed"
