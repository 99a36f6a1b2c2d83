"""Bandwidth of add_rms_norm: reads x, residual and weight, writes the normalised sum and the sum.

Run: python kernels/benchmarks/bench_add_rms_norm.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.add_rms_norm import make_case

if __name__ == "__main__":
    sys.exit(main("add_rms_norm", make_case))
