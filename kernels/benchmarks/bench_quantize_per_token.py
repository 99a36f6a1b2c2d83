"""Bandwidth of quantize_per_token to int8: reads x, writes a byte an element and 4 a token.

Run: python kernels/benchmarks/bench_quantize_per_token.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.quantize_per_token import make_case

if __name__ == "__main__":
    sys.exit(main("quantize_per_token", make_case))
