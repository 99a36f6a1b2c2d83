"""Speed of fp8_matmul: reads x and the weight, writes the result; hidden_size by hidden_size.

Run: python kernels/benchmarks/bench_fp8_matmul.py --num-tokens 1 16 4096
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.fp8_matmul import make_case

if __name__ == "__main__":
    sys.exit(main("fp8_matmul", make_case))
