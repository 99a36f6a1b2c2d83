"""Bandwidth of decode_attention: num_tokens sequences of 1,024 tokens each; reads their keys and values once.

Run: python kernels/benchmarks/bench_decode_attention.py --num-tokens 1 16 128
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.decode_attention import make_case

if __name__ == "__main__":
    sys.exit(main("decode_attention", make_case))
