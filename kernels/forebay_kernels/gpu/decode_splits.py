"""How decode attention splits a sequence's keys among programs: by its own length alone, never by its batch."""

import triton
import triton.language as tl

# Tokens of the smallest split. 256 tokens of one head of 128 in bfloat16 are 128 KiB: enough that reading them takes
# longer than starting a program. By arithmetic: not yet measured on a GPU.
_MIN_SPLIT_TOKENS = tl.constexpr(256)
# Most splits of a sequence: 8 key heads make 256 programs of one long sequence, more than any GPU has multiprocessors,
# and what the second kernel reads stays small. By arithmetic: not yet measured on a GPU.
MAX_SPLITS = tl.constexpr(32)


@triton.jit
def split_tokens(num_keys):  # type: ignore[no-untyped-def]
    """Return the tokens of one split of a sequence that sees num_keys: grows with it, so that 32 splits suffice."""
    steps = tl.cdiv(num_keys, MAX_SPLITS * _MIN_SPLIT_TOKENS)
    return tl.maximum(steps, 1) * _MIN_SPLIT_TOKENS


def num_splits_of(num_keys: int) -> int:
    """Return the most splits that a sequence which sees up to num_keys tokens has; at least 1."""
    return int(min(max(triton.cdiv(num_keys, _MIN_SPLIT_TOKENS.value), 1), MAX_SPLITS.value))
