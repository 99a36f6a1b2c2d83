"""What one rank needs beside weights and KV cache: activations, logits, graphs, runtime, communication, margin.

These terms are models, not measurements: each says what it counts, and the engine measures the sum at start.
"""

from forebay_operator.catalogue.accelerator_profile import AcceleratorProfile
from forebay_operator.facts.model_facts import ModelFacts

MIB = 1 << 20

GPU_RUNTIME = 1024 * MIB
"""CUDA context with loaded kernels (0.4-0.6 GiB), cuBLAS and attention workspaces, torch's own pools."""
CPU_RUNTIME = 1024 * MIB
"""Measured with torch 2.15, beside weights and cache: engine process 0.39 GiB, API process 0.08, ops process 0.02,
pages of the libraries 0.26; the rest is for what grows with the number of streams."""

GPU_MARGIN_PERCENT = 4
"""Of the accelerator's memory, for what the allocator cannot use because it lies in pieces."""
CPU_MARGIN_PERCENT = 4

LOGIT_BYTES = 22
"""A score in 16 and 32 bits, its probability, and sorted: value and 64-bit index (top-p)."""

GRAPH_BYTES_PER_LAYER = 96 * 1024
"""About 15 kernels a layer with their arguments, in one captured graph."""
MAX_GRAPH_BATCH = 512
"""Larger batches run without a graph."""

COMMUNICATION_BASE = 512 * MIB
"""NCCL's channels and the buffers of the one-shot all-reduce."""
COMMUNICATION_PER_PEER = 32 * MIB
CPU_COMMUNICATION = 64 * MIB


def activation_bytes(
    facts: ModelFacts,
    accelerator: AcceleratorProfile,
    *,
    dtype_bytes: int,
    tensor: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    kv_bytes_per_token: int,
    kv_tokens: int,
) -> int:
    """The highest point of one step.

    Per token: residual stream, normed input and output of the part (3 x hidden), and the wider of attention (queries,
    keys and values, then rotated, then attended) and feed-forward (gate and up, then their product; with experts the
    input is kept once per expert). The rotary table is counted here, too. On a CPU the numbers are counted in float32
    and the residual stream twice, because its operators convert and copy; and the attention gathers one layer of the
    cache into one piece: up to twice the whole cache's layer for decodes, one sequence for a prefill.
    """
    heads = facts.num_heads // tensor
    kv_heads = max(1, facts.num_kv_heads // tensor)
    attention = facts.head_dim * (3 * heads + 3 * kv_heads)
    experts = max((group.active or 0 for group in facts.tensors if group.name == "experts.down_proj"), default=0)
    feed_forward = 3 * (facts.intermediate_size // tensor) + experts * facts.hidden_size
    copies, number_bytes = (6, 4) if accelerator.device == "cpu" else (3, dtype_bytes)
    per_token = (copies * facts.hidden_size + max(attention, feed_forward)) * number_bytes
    total = per_token * max_num_batched_tokens + max_model_len * facts.head_dim * 4
    if accelerator.device == "cpu":
        layers = sum(kind.layers for kind in facts.kv_layers)
        decode = 2 * (kv_bytes_per_token * kv_tokens // layers)
        prefix = max_model_len * facts.head_dim * (4 * kv_heads + 2 * heads) * dtype_bytes
        mask = 5 * max_model_len * max_num_batched_tokens  # bool, then as numbers
        total += max(decode, prefix + mask)
    return total


def logits_bytes(facts: ModelFacts, max_num_seqs: int) -> int:
    """Scores of the rows that are sampled; every rank that samples holds the whole vocabulary."""
    return max_num_seqs * facts.vocab_size * LOGIT_BYTES


def graph_bytes(facts: ModelFacts, accelerator: AcceleratorProfile, max_num_seqs: int, pipeline: int) -> int:
    """CUDA graphs of decode: batches 1, 2, 4 and then every multiple of 8, as far as `max_num_seqs`."""
    if accelerator.device == "cpu":
        return 0
    num_graphs = 3 + -(-min(max_num_seqs, MAX_GRAPH_BATCH) // 8)
    return num_graphs * -(-facts.num_layers // pipeline) * GRAPH_BYTES_PER_LAYER


def runtime_bytes(accelerator: AcceleratorProfile) -> int:
    """Context, libraries, interpreter: there before the first weight."""
    return CPU_RUNTIME if accelerator.device == "cpu" else GPU_RUNTIME


def communication_bytes(accelerator: AcceleratorProfile, num_ranks: int) -> int:
    """Buffers of the collectives; none for a single rank."""
    if num_ranks == 1:
        return 0
    if accelerator.device == "cpu":
        return CPU_COMMUNICATION
    return COMMUNICATION_BASE + COMMUNICATION_PER_PEER * (num_ranks - 1)


def margin_bytes(accelerator: AcceleratorProfile, memory: int) -> int:
    """What stays free."""
    percent = CPU_MARGIN_PERCENT if accelerator.device == "cpu" else GPU_MARGIN_PERCENT
    return memory * percent // 100
