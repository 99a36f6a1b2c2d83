"""Speed of fused_moe: eight experts of a model's feed-forward size, two of them for a token, as Mixtral has them.

Run: python kernels/benchmarks/bench_fused_moe.py --model llama-3-8b --num-tokens 1 16 4096
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.fused_moe import make_case

if __name__ == "__main__":
    sys.exit(main("fused_moe", make_case))
