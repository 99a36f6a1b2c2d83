"""Speed of w4a16_matmul: reads x and the weight, writes the result; hidden_size by hidden_size.

Run: python kernels/benchmarks/bench_w4a16_matmul.py --num-tokens 1 16 4096
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.w4a16_matmul import make_case

if __name__ == "__main__":
    sys.exit(main("w4a16_matmul", make_case))
