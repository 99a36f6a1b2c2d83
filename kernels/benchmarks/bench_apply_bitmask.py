"""Bandwidth of apply_bitmask: reads the mask, writes the logits of the half that it forbids.

Run: python kernels/benchmarks/bench_apply_bitmask.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.apply_bitmask import make_case

if __name__ == "__main__":
    sys.exit(main("apply_bitmask", make_case))
