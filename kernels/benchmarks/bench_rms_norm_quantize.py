"""Bandwidth of rms_norm_quantize to int8: reads x and weight, writes a byte an element and 4 a token.

Run: python kernels/benchmarks/bench_rms_norm_quantize.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.rms_norm_quantize import make_case

if __name__ == "__main__":
    sys.exit(main("rms_norm_quantize", make_case))
