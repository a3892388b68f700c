#!/usr/bin/env bash
# All checks and measurements that want a GPU, one after another, each with a time limit and a log of its own.
#   benchmarks/gpu_suite.sh FOLDER [STEP...]      steps: about tests optim trainer rollout rollout-wide static ranks
# FOLDER gets STEP.log for each step and summary.jsonl: step, exit code (124: out of time), seconds.
# PYTHON=... chooses the interpreter. SMALL=1 takes tiny sizes on a CPU, to try the suite out. Nothing is downloaded, and
# neither vLLM nor DeepSpeed is needed; TRL is measured where it is installed. The exit code is the number of failed steps.
set -uo pipefail
mkdir -p "${1:?usage: benchmarks/gpu_suite.sh FOLDER [STEP...]}"
out="$(realpath "$1")"
shift
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
small="${SMALL:-}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
failed=0

wanted() {  # NAME
  [ ${#steps[@]} -eq 0 ] || [[ " ${steps[*]} " == *" $1 "* ]]
}

step() {  # NAME SECONDS COMMAND...
  local name="$1" limit="$2" code=0 started=$SECONDS
  shift 2
  wanted "$name" || return 0
  echo "==> $name" >&2
  timeout --kill-after 15 "$limit" "$@" > "$out/$name.log" 2>&1 || code=$?
  echo "{\"step\": \"$name\", \"exit\": $code, \"seconds\": $((SECONDS - started))}" | tee -a "$out/summary.jsonl"
  [ "$code" -eq 0 ] || failed=$((failed + 1))
}

about() {
  nvidia-smi || true
  "$python" - <<'PY'
import importlib.metadata as meta
import importlib.util
import sys

import torch

print("python", sys.version.split()[0], "torch", torch.__version__, "GPUs", torch.cuda.device_count())
for name in ("transformers", "peft", "triton", "trl", "safetensors", "numpy", "pydantic", "pluggy", "psutil", "lxml"):
    try:
        print(name, meta.version(name))
    except meta.PackageNotFoundError:
        print(name, "is not there")
needed = "flask waitress pydantic pluggy typer rich platformdirs tomli_w packaging psutil safetensors tokenizers numpy lxml pytest"
lacking = [name for name in (*needed.split(), "pytest_asyncio", "pytest_timeout") if not importlib.util.find_spec(name)]
if lacking:
    print("needed and not there:", *lacking)
from dynaweb.plugin.registry import load

names = load().names("opt")
print("optimizers:", *names)
if not names:
    print("no plugin is registered: install dynaweb (pip install --no-deps -e .)")
sys.exit(bool(lacking) or not names)
PY
}

rollout() {
  "$python" benchmarks/rollout.py "$@"
}

wide() {  # SET...: the learning rates leave the widened model as it is
  "$python" benchmarks/widen.py "$scratch/wide" --dtype "$dtype" --layers "$layers" || return
  rollout --model "$scratch/wide" --dtype "$dtype" "${dreams[@]}" "${short[@]}" --sft-steps 2 --wm-steps 2 \
    --set sft.lr=1e-6 wm_fit.lr=1e-6 rl.lr=1e-6 "$@"
}

launched() {  # the same with every kernel launched by itself
  wide policy.engine.static=false wm.engine.static=false reward.engine.static=false
}

ranks() {
  local count most=2
  [ -n "$small" ] || most="$("$python" -c 'import torch; print(torch.cuda.device_count())')"
  for ((count = 1; count <= most; count *= 2)); do
    "$python" -m torch.distributed.run --standalone --nproc-per-node "$count" benchmarks/ranks.py "$@" || return
  done
}

steps=("$@")
if [ -n "$small" ]; then
  dtype=float32 layers=4
  optim=(--rows 2 --prompt 16 --response 4 --vocabulary 256 --width 32 --repeat 1)
  trainer=(--sizes tiny --shape tiny --device cpu --dtype float32 --repeat 1)
  dreams=(--dreams 4 --updates 1)
  short=(--explore 2)
  sizes=(--size tiny --shape tiny --dtype float32 --prompts 4 --prompt 16 --new 4 --repeat 1)
else
  dtype=bfloat16 layers=30
  optim=(--device cuda --dtype bfloat16 --width 2048 --layers 16 --prompt 1500 --response 80)
  trainer=(--sizes 135m 1.5b --device cuda --dtype bfloat16)
  dreams=(--dreams 8 64 256 --updates 3)
  short=(--explore 30)
  sizes=(--size 1.5b)
fi
ways=(ours)
if "$python" -c 'import trl' 2> "$scratch/trl"; then ways+=(trl); fi

# Functions run in shells of their own, which timeout can end.
export -f about rollout wide launched ranks
export python small scratch dtype layers
declare -p dreams short sizes > "$scratch/arrays"
call() {  # NAME SECONDS FUNCTION...
  step "$1" "$2" bash -c 'source "$0/arrays"; "$@"' "$scratch" "${@:3}"
}

call about 120 about
step tests 300 "$python" -m pytest tests/trainer/test_backend_gpu.py -q -p no:cacheprovider
step optim 240 "$python" benchmarks/optim.py "${optim[@]}"
step trainer 420 "$python" benchmarks/trainer.py "${trainer[@]}" --ways "${ways[@]}"
call rollout 300 rollout "${dreams[@]}" "${short[@]}" --sft-steps 2 --wm-steps 2
call rollout-wide 420 wide
call static 420 launched
call ranks 420 ranks "${sizes[@]}"
exit "$failed"
