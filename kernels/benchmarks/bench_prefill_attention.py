"""Speed of prefill_attention on one prompt without a prefix: reads query, key and value, writes as much as query.

Run: python kernels/benchmarks/bench_prefill_attention.py --num-tokens 1024 16384
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.prefill_attention import make_case

if __name__ == "__main__":
    sys.exit(main("prefill_attention", make_case))
