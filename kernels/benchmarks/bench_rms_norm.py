"""Bandwidth of rms_norm: reads x and weight, writes the result.

Run: python kernels/benchmarks/bench_rms_norm.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.rms_norm import make_case

if __name__ == "__main__":
    sys.exit(main("rms_norm", make_case))
