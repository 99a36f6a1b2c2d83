"""Bandwidth of write_kv_cache: reads query, key, value and their angles, writes query, key twice and value.

Run: python kernels/benchmarks/bench_write_kv_cache.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.write_kv_cache import make_case

if __name__ == "__main__":
    sys.exit(main("write_kv_cache", make_case))
