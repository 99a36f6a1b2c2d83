"""Run Triton kernels through Triton's interpreter where there is no GPU, and for real where there is one."""

import os
import sys

import torch

if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    # Triton reads this while it is imported; later is too late for its own library functions.
    if "triton" in sys.modules:
        raise RuntimeError("triton was imported before tests/test_kernels/conftest.py could choose its interpreter")
    os.environ["TRITON_INTERPRET"] = "1"
