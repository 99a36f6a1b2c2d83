#!/usr/bin/env bash
# The first minutes on a GPU: is it right, how fast is it. Under 8 minutes on one H200; writes gpu-check.json.
# Runs from a plain copy of the tree, with PYTHON (default: .venv's, else python3). `hack/gpu_check.sh --help` says more.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
[[ -x "$python" ]] || python=python3
export PYTHONPATH="kernels:server:operator${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m hack.gpu_check "$@"
