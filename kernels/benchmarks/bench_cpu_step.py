"""Measure steps of the C++ library for CPUs with random weights, beside a read of the weights by the same threads."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from forebay_kernels.cpu.arena import Arena, zeros
from forebay_kernels.cpu.library import VARIANTS, best_variant, cpu_flags, load_library, usable_variants
from forebay_kernels.cpu.llama_step import LlamaLayerWeights, LlamaSizes, LlamaStep, LlamaWeights, StepBatch
from forebay_kernels.cpu.packing import AnyWeight, PackedWeight, pack
from forebay_kernels.int4_weights import Int4Weight
from forebay_kernels.int8_weights import Int8Weight

MODELS = {
    "smollm2-135m": (30, LlamaSizes(576, 1536, 9, 3, 64, 49152, 1e-5)),
    "llama-3.2-1b": (16, LlamaSizes(2048, 8192, 32, 8, 64, 128256, 1e-5)),
}
"""Layers, and the numbers of each model's published config.json."""
PROMPT, BLOCK_SIZE, MAX_SEQUENCES = 256, 16, 16
BLOCKS = (PROMPT + 64) // BLOCK_SIZE


def random_weight(kind: str, rows: int, columns: int) -> AnyWeight:
    """Numbers that no one looks at, of a size that keeps sums finite."""
    scale = columns**-0.5
    if kind == "bf16":
        plain: torch.Tensor = torch.randn(rows, columns) * scale
        return plain.bfloat16()
    if kind == "int4":
        numbers = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
        return Int4Weight(numbers, torch.full((rows, columns // 32), scale / 4), None, None)
    return Int8Weight(torch.randint(-127, 128, (rows, columns), dtype=torch.int8), torch.full((rows, 1), scale / 64))


def make_step(name: str, kind: str, variant: str, num_threads: int) -> tuple[LlamaStep, int]:
    """A model with random weights, and the bytes of them that a step of one row reads."""
    num_layers, sizes = MODELS[name]
    arena = Arena()
    matrices: list[PackedWeight] = []

    def weight(rows: int, columns: int, num_parts: int = 1, kind: str = kind) -> PackedWeight:
        matrices.append(pack(random_weight(kind, rows, columns), num_parts=num_parts, arena=arena))
        return matrices[-1]

    ones = torch.ones(sizes.hidden_size)
    query_size = sizes.num_heads * sizes.head_dim
    layers = [
        LlamaLayerWeights(
            ones,
            ones,
            weight(query_size + 2 * sizes.num_kv_heads * sizes.head_dim, sizes.hidden_size),
            weight(sizes.hidden_size, query_size),
            weight(2 * sizes.intermediate_size, sizes.hidden_size, 2),
            weight(sizes.hidden_size, sizes.intermediate_size),
        )
        for _ in range(num_layers)
    ]
    is_bf16 = kind == "bf16"
    head = weight(sizes.vocab_size, sizes.hidden_size, kind="bf16" if is_bf16 else "int8")
    shape = (num_layers, 2, MAX_SEQUENCES * BLOCKS, BLOCK_SIZE, sizes.num_kv_heads, sizes.head_dim)
    angles = torch.outer(torch.arange(512.0), 1e4 ** (-torch.arange(sizes.head_dim // 2) * 2 / sizes.head_dim))
    step = LlamaStep(
        sizes,
        LlamaWeights(layers, ones, head, None),
        zeros(shape, torch.bfloat16),
        torch.cat((angles.cos(), angles.sin()), dim=-1),
        max_tokens=PROMPT,
        num_threads=num_threads,
        variant=variant,
    )
    return step, sum(matrix.num_bytes for matrix in matrices)


def make_batch(num_sequences: int, num_tokens: int, context_len: int) -> StepBatch:
    """Sequences of num_tokens new tokens each, the last row of each wanted."""
    starts = np.arange(num_sequences + 1) * num_tokens
    arrays = (
        np.arange(num_sequences * num_tokens) % 1000,
        starts,
        np.full(num_sequences, context_len),
        np.arange(num_sequences * BLOCKS),
        np.arange(num_sequences) * BLOCKS,
        starts[1:] - 1,
    )
    return StepBatch(*(array.astype(np.int32) for array in arrays))


def best_seconds(run: Callable[[], object], seconds: float) -> float:
    """The quickest of the runs that fit into so many seconds, of two at least."""
    times: list[float] = []
    while len(times) < 2 or sum(times) < seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Parse the command line, measure, print a table for each variant of the library."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="examples: bench_cpu_step.py --model llama-3.2-1b --weights int4, bench_cpu_step.py --variants avxvnni",
    )
    parser.add_argument("--model", choices=sorted(MODELS), default="smollm2-135m")
    parser.add_argument("--weights", choices=("int8", "int4", "bf16"), default="int8")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), help="of the library (default: the best one)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line")
    arguments = parser.parse_args()
    best, usable = best_variant(), usable_variants(cpu_flags())
    if best is None:
        parser.exit(2, "bench_cpu_step.py: the C++ library was not built, or this CPU has no AVX2\n")
    for variant in arguments.variants or [best]:
        if variant not in usable:
            parser.exit(2, f"bench_cpu_step.py: --variants {variant}: not built, or nothing for this CPU\n")
        _measure(arguments, variant)
    return 0


def _measure(arguments: argparse.Namespace, variant: str) -> None:
    step, num_bytes = make_step(arguments.model, arguments.weights, variant, arguments.threads)
    print(f"{arguments.model}, {arguments.weights}, {variant}, {arguments.threads} threads, {num_bytes / 1e6:,.0f} MB")
    memory = Arena().copy(torch.ones(num_bytes, dtype=torch.uint8))
    library = load_library(variant)
    floor = best_seconds(
        lambda: library.forebay_read(memory.data_ptr(), num_bytes, arguments.threads), arguments.seconds
    )
    print(f"  reading as many bytes      {floor * 1e3:8.2f} ms  {num_bytes / floor / 1e9:6.1f} GB/s")
    for num_sequences in (1, 4, 16):
        batch = make_batch(num_sequences, 1, PROMPT)
        seconds = best_seconds(partial(step.best, batch), arguments.seconds)
        share = f"  {floor / seconds:4.0%} of the floor" if num_sequences == 1 else ""
        line = f"  decode, {num_sequences:2} sequences       {seconds * 1e3:8.2f} ms"
        print(f"{line}  {num_sequences / seconds:6.0f} tokens/s{share}")
    seconds = best_seconds(lambda: step.best(make_batch(1, PROMPT, 0)), arguments.seconds)
    print(f"  prefill of {PROMPT} tokens      {seconds * 1e3:8.2f} ms  {PROMPT / seconds:6.0f} tokens/s")


if __name__ == "__main__":
    sys.exit(main())
