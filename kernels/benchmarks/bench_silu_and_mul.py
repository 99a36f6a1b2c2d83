"""Bandwidth of silu_and_mul: reads gate and up, writes half as much.

Run: python kernels/benchmarks/bench_silu_and_mul.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.silu_and_mul import make_case

if __name__ == "__main__":
    sys.exit(main("silu_and_mul", make_case))
