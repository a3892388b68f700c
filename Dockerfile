# syntax=docker/dockerfile:1
# README's two commands in a container: the main job, and the tests (docs/containers.md).
#
#   docker build -t dynaweb .
#   docker run --rm --shm-size 1g -v dynaweb-runs:/home/dynaweb/dynaweb/runs -v dynaweb-cache:/home/dynaweb/.cache dynaweb
#   docker build -t dynaweb-test --target test . && docker run --rm --shm-size 1g dynaweb-test
#
# For NVIDIA GPUs:
#   docker build -t dynaweb-cuda --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 --build-arg TORCH= .
#   docker run --rm --gpus all --shm-size 1g dynaweb-cuda dynaweb run --wm delta --opt gspo --set model.device=cuda
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS run
# Where PyTorch's build for CPUs is, which is several GB smaller; empty = the build for NVIDIA GPUs.
ARG TORCH=https://download.pytorch.org/whl/cpu
# Number of the user, so that folders of the host can be mounted.
ARG UID=1000

# Python where the base has none; what the tests compile and commit with.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean \
    && apt-get update \
    && { command -v python3 >/dev/null || apt-get install -y --no-install-recommends python3 python3-dev python3-venv; } \
    && apt-get install -y --no-install-recommends ca-certificates fonts-dejavu-core g++ git tini

RUN { userdel --remove ubuntu 2>/dev/null || true; } \
    && useradd --create-home --uid "$UID" --shell /bin/bash dynaweb \
    && mkdir -p /home/dynaweb/dynaweb/runs /home/dynaweb/.cache /opt/browsers \
    && chown -R dynaweb:dynaweb /home/dynaweb
ENV PATH=/home/dynaweb/dynaweb/.venv/bin:$PATH \
    HOME=/home/dynaweb \
    PLAYWRIGHT_BROWSERS_PATH=/opt/browsers \
    PIP_CACHE_DIR=/var/cache/pip \
    PIP_DISABLE_PIP_VERSION_CHECK=1

USER dynaweb
WORKDIR /home/dynaweb/dynaweb
# First what changes rarely: PyTorch is most of the image.
COPY --chown=dynaweb:dynaweb constraints.txt ./
RUN --mount=type=cache,target=/var/cache/pip,mode=0777 \
    python3 -m venv .venv && .venv/bin/pip install -c constraints.txt ${TORCH:+--extra-index-url $TORCH} torch
COPY --chown=dynaweb:dynaweb . ./
RUN --mount=type=cache,target=/var/cache/pip,mode=0777 \
    .venv/bin/pip install -c constraints.txt -e '.[all]'

# Chromium's headless shell with the libraries that it needs, which root alone may install.
USER root
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    .venv/bin/dynaweb setup
USER dynaweb

# Browsers leave processes behind that somebody has to take.
ENTRYPOINT ["tini", "--"]
CMD ["dynaweb", "run", "--wm", "delta", "--opt", "gspo"]

FROM run AS test
RUN --mount=type=cache,target=/var/cache/pip,mode=0777 \
    .venv/bin/pip install -c constraints.txt -e '.[all,test]'
CMD ["pytest", "-n", "2", "--dist", "loadfile"]

# What is built without `--target`.
FROM run
