"""Bandwidth of gelu_and_mul: reads gate and up, writes half as much.

Run: python kernels/benchmarks/bench_gelu_and_mul.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.gelu_and_mul import make_case

if __name__ == "__main__":
    sys.exit(main("gelu_and_mul", make_case))
