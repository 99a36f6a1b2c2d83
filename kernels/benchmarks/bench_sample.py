"""Bandwidth of sample with top_p: reads the logits once; what it reads again comes out of the GPU's cache.

Run: python kernels/benchmarks/bench_sample.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.sample import make_case

if __name__ == "__main__":
    sys.exit(main("sample", make_case))
