"""Bandwidth of verify_draft with 3 drafts a sequence: two numbers a draft, and the last row.

Run: python kernels/benchmarks/bench_verify_draft.py
"""

import sys

from forebay_kernels.benchmark import main
from forebay_kernels.cases.verify_draft import make_case

if __name__ == "__main__":
    sys.exit(main("verify_draft", make_case))
