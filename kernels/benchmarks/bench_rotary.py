"""Bandwidth of rotary: reads query, key, positions and one row of the cache a token, writes query and key.

Run: python kernels/benchmarks/bench_rotary.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.rotary import make_case

if __name__ == "__main__":
    sys.exit(main("rotary", make_case))
