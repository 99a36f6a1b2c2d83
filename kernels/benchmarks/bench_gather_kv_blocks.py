"""Bandwidth of gather_kv_blocks: reads and writes num_tokens blocks of keys and as many of values.

Run: python kernels/benchmarks/bench_gather_kv_blocks.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.gather_kv_blocks import make_case

if __name__ == "__main__":
    sys.exit(main("gather_kv_blocks", make_case))
