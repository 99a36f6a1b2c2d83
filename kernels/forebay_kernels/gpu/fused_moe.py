"""Mixture of experts in Triton: pairs of a token and one of its experts sorted by expert, then products by groups.

Five launches: sort, gate and up of every pair, activation, down, and the sum over a token's experts. For few tokens
bound by memory: the weights of the experts that were chosen are read once. Nothing is read back to the host: the grid
has programs for as many tiles as there can be, and those without one end at once.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.grouped_int4_matmul import grouped_int4_matmul_launch
from forebay_kernels.gpu.grouped_matmul import grouped_matmul_launch
from forebay_kernels.gpu.launch import Launch, block_of, warps_of
from forebay_kernels.gpu.quantize_per_token import quantize_per_token
from forebay_kernels.gpu.silu_and_mul import silu_and_mul
from forebay_kernels.gpu.silu_and_mul_quantize import silu_and_mul_quantize
from forebay_kernels.reference.matmul import SCALE_BLOCK
from forebay_kernels.targets import target_of

# Pairs that one step of the sort looks at. By arithmetic: not yet measured on a GPU.
_SORT_BLOCK = 1024
# Elements of a token's row that one program adds up. By arithmetic: not yet measured on a GPU.
_SUM_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _sort_kernel(  # type: ignore[no-untyped-def]
    order_ptr,  # [num_pairs], int32: pairs, those of the first expert first, each expert's in their own order
    starts_ptr,  # [num_experts + 1], int32: where each expert's pairs start in order, and num_pairs
    expert_ids_ptr,  # [num_pairs], int64
    num_pairs,
    num_experts,
    BLOCK: tl.constexpr,
):
    """Find one expert's pairs and their place: behind those of all experts before it. The last program has none."""
    expert = tl.program_id(0)
    is_before = tl.zeros((BLOCK,), dtype=tl.int32)
    for block_start in range(0, num_pairs, BLOCK):
        pairs = block_start + tl.arange(0, BLOCK)
        ids = tl.load(expert_ids_ptr + pairs, mask=pairs < num_pairs, other=num_experts)
        is_before += (ids < expert).to(tl.int32)
    start = tl.sum(is_before, 0)
    tl.store(starts_ptr + expert, start)
    for block_start in range(0, num_pairs, BLOCK):
        pairs = block_start + tl.arange(0, BLOCK)
        ids = tl.load(expert_ids_ptr + pairs, mask=pairs < num_pairs, other=-1)
        is_mine = (ids == expert).to(tl.int32)
        tl.store(order_ptr + start + tl.cumsum(is_mine, 0) - 1, pairs, mask=is_mine != 0)
        start += tl.sum(is_mine, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _weighted_sum_kernel(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_tokens, hidden_size], contiguous
    pair_outputs_ptr,  # [num_tokens, num_choices, hidden_size], contiguous
    expert_weights_ptr,  # [num_tokens, num_choices], float32
    num_choices,
    hidden_size,
    BLOCK: tl.constexpr,
):
    """Add up BLOCK adjacent elements of what one token's experts say, in the order in which it names them."""
    token = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < hidden_size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in range(0, num_choices):
        pair = token * num_choices + choice
        weight = tl.load(expert_weights_ptr + pair)
        total += weight * tl.load(pair_outputs_ptr + pair * hidden_size + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(output_ptr + token * hidden_size + offs, total.to(output_ptr.dtype.element_ty), mask=mask)


def fused_moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up_scales: torch.Tensor | None = None,
    down_scales: torch.Tensor | None = None,
    quantizes_input: bool = False,
    gate_up_zeros: torch.Tensor | None = None,
    down_zeros: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch the kernels; arguments and result as `forebay_kernels.fused_moe`."""
    num_pairs = expert_ids.numel()
    order = torch.empty(num_pairs, dtype=torch.int32, device=x.device)
    starts = torch.empty(gate_up.shape[0] + 1, dtype=torch.int32, device=x.device)
    sort_launch(order, starts, expert_ids).run()

    group_size = SCALE_BLOCK if quantizes_input and gate_up_scales is not None and gate_up_scales.dim() == 3 else None
    rows, row_scales = (x, None) if not quantizes_input else quantize_per_token(x, gate_up.dtype, group_size)
    gate_up_of_pairs = torch.empty((num_pairs, gate_up.shape[1]), dtype=x.dtype, device=x.device)
    _run_product(gate_up_of_pairs, rows, row_scales, gate_up, gate_up_scales, gate_up_zeros, order, starts)

    if not quantizes_input:
        inner, inner_scales = silu_and_mul(gate_up_of_pairs), None
    elif group_size is None:
        inner, inner_scales = silu_and_mul_quantize(gate_up_of_pairs, down.dtype)
    else:
        inner, inner_scales = quantize_per_token(silu_and_mul(gate_up_of_pairs), down.dtype, group_size)
    down_of_pairs = torch.empty((num_pairs, down.shape[1]), dtype=x.dtype, device=x.device)
    _run_product(down_of_pairs, inner, inner_scales, down, down_scales, down_zeros, order, starts)

    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    weighted_sum_launch(output, down_of_pairs, expert_weights).run()
    return output


def _run_product(
    output: torch.Tensor,
    x: torch.Tensor,
    x_scales: torch.Tensor | None,
    weights: torch.Tensor,
    scales: torch.Tensor | None,
    zeros: torch.Tensor | None,
    order: torch.Tensor,
    starts: torch.Tensor,
) -> None:
    """Multiply every pair's row of x with its expert's weight, into output."""
    target = target_of(x.device)
    if weights.dtype == torch.uint8 and scales is not None:
        grouped_int4_matmul_launch(output, x, weights, scales, zeros, order, starts, target=target).run()
    else:
        grouped_matmul_launch(output, x, x_scales, weights, scales, order, starts, target=target).run()


def sort_launch(order: torch.Tensor, starts: torch.Tensor, expert_ids: torch.Tensor) -> Launch:
    """Return the launch that sorts pairs, into order, [num_pairs], and starts, [num_experts + 1], both int32. Pure."""
    num_pairs = expert_ids.numel()
    block = min(block_of(max(num_pairs, 1)), _SORT_BLOCK)
    return Launch(
        kernel=_sort_kernel,
        grid=(starts.shape[0] if num_pairs else 0,),
        arguments={
            "order_ptr": order,
            "starts_ptr": starts,
            "expert_ids_ptr": expert_ids,
            "num_pairs": num_pairs,
            "num_experts": starts.shape[0] - 1,
            "BLOCK": block,
        },
        num_warps=warps_of(block, elements_per_thread=4),
    )


def weighted_sum_launch(output: torch.Tensor, pair_outputs: torch.Tensor, expert_weights: torch.Tensor) -> Launch:
    """Return the launch that adds up a token's experts and writes to output, contiguous. Pure."""
    num_tokens, hidden_size = output.shape
    block = min(block_of(hidden_size), _SUM_BLOCK)
    return Launch(
        kernel=_weighted_sum_kernel,
        grid=(num_tokens, triton.cdiv(hidden_size, block)),
        arguments={
            "output_ptr": output,
            "pair_outputs_ptr": pair_outputs,
            "expert_weights_ptr": expert_weights,
            "num_choices": expert_weights.shape[1],
            "hidden_size": hidden_size,
            "BLOCK": block,
        },
        num_warps=warps_of(block, elements_per_thread=8),
    )
