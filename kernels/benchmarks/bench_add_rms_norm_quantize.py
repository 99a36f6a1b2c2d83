"""Bandwidth of add_rms_norm_quantize to int8: as add_rms_norm, but a byte an element of the norm.

Run: python kernels/benchmarks/bench_add_rms_norm_quantize.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.add_rms_norm_quantize import make_case

if __name__ == "__main__":
    sys.exit(main("add_rms_norm_quantize", make_case))
