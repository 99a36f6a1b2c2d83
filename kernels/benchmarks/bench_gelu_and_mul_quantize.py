"""Bandwidth of gelu_and_mul_quantize to int8: reads gate and up, writes a byte an element.

Run: python kernels/benchmarks/bench_gelu_and_mul_quantize.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.gelu_and_mul_quantize import make_case

if __name__ == "__main__":
    sys.exit(main("gelu_and_mul_quantize", make_case))
