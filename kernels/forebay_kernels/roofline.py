"""What each kernel must at least move and compute, and how long that takes each GPU: `docs/roofline.md`. No torch here.

Roofline: Williams, Waterman, Patterson, CACM 52(4), 2009. The page is written by
`python -m forebay_kernels.roofline > docs/roofline.md`. Activations, weights that are not quantized and cached keys and
values have two bytes (bfloat16).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from forebay_kernels.shapes import MODEL_SHAPES, ModelShape

BLOCK_SIZE = 16
CONTEXT = 1024
"""Cached tokens of each sequence that decodes."""
VOCAB_SIZE = 128256
DRAFTS = 3
"""Drafted tokens of each sequence that is verified."""
GROUP_SIZE = 64
"""Of 4-bit weights."""
NUM_EXPERTS, EXPERTS_OF_TOKEN = 8, 2
"""Of a mixture of experts, each as wide as the model's feed-forward part: Mixtral 8x7B, where that is Llama 3 8B's."""
PAGE_TOKENS = (1, 64, 2048)

NumberFormat = Literal["bf16", "int8", "fp8"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU can do at best, from the vendor's data sheet; dense, without sparsity."""

    name: str
    gigabytes_per_second: int
    teraflops: dict[NumberFormat, int]


GPUS = (
    Gpu("a100-80gb", 2039, {"bf16": 312, "int8": 624}),
    Gpu("l40s-48gb", 864, {"bf16": 362, "fp8": 733, "int8": 733}),
    Gpu("h100-80gb", 3350, {"bf16": 989, "fp8": 1979, "int8": 1979}),
    Gpu("h200-141gb", 4800, {"bf16": 989, "fp8": 1979, "int8": 1979}),
    Gpu("b200-180gb", 8000, {"bf16": 2250, "fp8": 4500, "int8": 4500}),
    Gpu("mi300x-192gb", 5300, {"bf16": 1307, "fp8": 2614, "int8": 2614}),
)


@dataclass(frozen=True, slots=True)
class Work:
    """One call's least work."""

    bytes_moved: int
    """Read and written, each once."""
    flops: int = 0
    """Multiplications and additions of its matrix products."""
    number_format: NumberFormat = "bf16"
    """In which they are done, where the GPU can; in bf16 elsewhere."""

    def floor_us(self, gpu: Gpu) -> float:
        """Microseconds that no implementation can beat."""
        peak = gpu.teraflops.get(self.number_format, gpu.teraflops["bf16"])
        return max(self.bytes_moved / gpu.gigabytes_per_second / 1e3, self.flops / peak / 1e6)

    def is_bound_by_memory(self, gpu: Gpu) -> bool:
        """Whether the bytes take longer than the products."""
        return self.floor_us(gpu) == self.bytes_moved / gpu.gigabytes_per_second / 1e3


def _rotary(s: ModelShape, t: int) -> Work:
    return Work(2 * t * (s.num_heads + s.num_kv_heads) * s.head_dim * 2 + t * (8 + 4 * s.head_dim))


def _write_kv_cache(s: ModelShape, t: int) -> Work:
    return Work(t * s.head_dim * 2 * (2 * s.num_heads + 5 * s.num_kv_heads) + t * (16 + 4 * s.head_dim))


def _prefill_attention(s: ModelShape, t: int) -> Work:
    pairs = t * (t + 1) // 2
    bytes_moved = 2 * t * (s.num_heads + s.num_kv_heads) * s.head_dim * 2
    return Work(bytes_moved, 4 * s.num_heads * s.head_dim * pairs)


def _decode_attention(s: ModelShape, t: int) -> Work:
    cached = 2 * t * CONTEXT * s.num_kv_heads * s.head_dim * 2
    tables = t * CONTEXT // BLOCK_SIZE * 4 + t * 4
    bytes_moved = 2 * t * s.num_heads * s.head_dim * 2 + cached + tables
    return Work(bytes_moved, 4 * s.num_heads * s.head_dim * t * CONTEXT)


def _product(s: ModelShape, t: int, *, x: int, weight: float, number_format: NumberFormat) -> Work:
    """A square weight of the hidden size; x and weight: bytes of a number."""
    hidden = s.hidden_size
    token_scales = 4 * t if x == 1 else 0
    row_scales = 2 * hidden * hidden // GROUP_SIZE if weight < 1 else 4 * hidden
    bytes_moved = t * hidden * (x + 2) + token_scales + int(hidden * hidden * weight) + row_scales
    return Work(bytes_moved, 2 * t * hidden * hidden, number_format)


def _fused_moe(s: ModelShape, t: int) -> Work:
    """Tokens choose in turn: no expert twice before all were chosen."""
    numbers_of_expert = 3 * s.hidden_size * s.intermediate_size
    num_pairs = t * EXPERTS_OF_TOKEN
    bytes_moved = 2 * t * s.hidden_size * 2 + min(num_pairs, NUM_EXPERTS) * numbers_of_expert * 2 + num_pairs * 12
    return Work(bytes_moved, 2 * num_pairs * numbers_of_expert)


KERNEL_WORK: dict[str, Callable[[ModelShape, int], Work]] = {
    "rms_norm": lambda s, t: Work(2 * t * s.hidden_size * 2 + s.hidden_size * 2),
    "add_rms_norm": lambda s, t: Work(4 * t * s.hidden_size * 2 + s.hidden_size * 2),
    "rms_norm_quantize": lambda s, t: Work(t * s.hidden_size * 3 + s.hidden_size * 2 + 4 * t),
    "add_rms_norm_quantize": lambda s, t: Work(t * s.hidden_size * 7 + s.hidden_size * 2 + 4 * t),
    "quantize_per_token": lambda s, t: Work(t * s.hidden_size * 3 + 4 * t),
    "silu_and_mul": lambda s, t: Work(3 * t * s.intermediate_size * 2),
    "gelu_and_mul": lambda s, t: Work(3 * t * s.intermediate_size * 2),
    "silu_and_mul_quantize": lambda s, t: Work(t * s.intermediate_size * 5 + 4 * t),
    "gelu_and_mul_quantize": lambda s, t: Work(t * s.intermediate_size * 5 + 4 * t),
    "rotary": _rotary,
    "write_kv_cache": _write_kv_cache,
    "gather_kv_blocks": lambda s, t: Work(4 * t * BLOCK_SIZE * s.num_kv_heads * s.head_dim * 2 + 8 * t),
    "prefill_attention": _prefill_attention,
    "decode_attention": _decode_attention,
    "w8a8_matmul": lambda s, t: _product(s, t, x=1, weight=1, number_format="int8"),
    "fp8_matmul": lambda s, t: _product(s, t, x=1, weight=1, number_format="fp8"),
    "w8a16_matmul": lambda s, t: _product(s, t, x=2, weight=1, number_format="bf16"),
    "w4a16_matmul": lambda s, t: _product(s, t, x=2, weight=0.5, number_format="bf16"),
    "fused_moe": _fused_moe,
    "apply_bitmask": lambda s, t: Work(t * VOCAB_SIZE + t * VOCAB_SIZE // 8),
    "sample": lambda s, t: Work(t * VOCAB_SIZE * 4 + 32 * t),
    "verify_draft": lambda s, t: Work(t * (VOCAB_SIZE * 4 + 8 * DRAFTS) + 20 * t * (DRAFTS + 1) + 12 * t),
}
"""By kernel: (model, tokens, sequences, rows or blocks) -> the work, of the cases that `kernels/benchmarks` measure."""


def page(shape: ModelShape) -> str:
    """The page, in Markdown."""
    names = [gpu.name for gpu in GPUS]
    lines = [
        "# Roofline",
        "",
        "<!-- written by `python -m forebay_kernels.roofline`: change kernels/forebay_kernels/roofline.py instead -->",
        "",
        f"The least that each kernel must move and compute for {shape.name} in bfloat16, and the microseconds that",
        "this takes each GPU at the peaks of its data sheet: no implementation is faster. Times with a * are bound by",
        "products, the others by memory. T: tokens; sequences of 1,024 cached tokens for `decode_attention`, rows of",
        "logits for sampling, blocks for copies; `fused_moe` has 8 experts, 2 for a token (Mixtral 8x7B). The formulas",
        "in letters: [kernels.md](kernels.md). What a kernel reaches on the GPU at hand:",
        "`python kernels/benchmarks/bench_<name>.py`.",
        "",
        "| kernel | T | bytes | operations | " + " | ".join(names) + " |",
        "|---|--:|--:|--:|" + "--:|" * len(names),
    ]
    for kernel, work_of in KERNEL_WORK.items():
        for num_tokens in PAGE_TOKENS:
            work = work_of(shape, num_tokens)
            times = [f"{work.floor_us(gpu):.2f}{'' if work.is_bound_by_memory(gpu) else '*'}" for gpu in GPUS]
            lines.append(
                f"| `{kernel}` | {num_tokens:,} | {work.bytes_moved:,} | {work.flops:,} | " + " | ".join(times) + " |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(next(shape for shape in MODEL_SHAPES if shape.name == "llama-3-8b")))
