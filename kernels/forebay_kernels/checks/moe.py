"""Checks of the arguments of mixtures of experts."""

import torch

from forebay_kernels.checks.quantization import check_eight_bits
from forebay_kernels.checks.tensors import FLOAT_DTYPES, check_floats, check_like
from forebay_kernels.int4_weights import chunk_of
from forebay_kernels.reference.matmul import SCALE_BLOCK

MAX_EXPERTS = 1024
"""Most experts that fused_moe takes: each program of the GPU kernel finds its own among all."""


def check_fused_moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up_scales: torch.Tensor | None,
    down_scales: torch.Tensor | None,
    quantizes_input: bool,
    gate_up_zeros: torch.Tensor | None,
    down_zeros: torch.Tensor | None,
) -> None:
    """Raise ValueError unless `fused_moe` can take these. Which experts expert_ids name is not looked at."""
    check_floats("x", x, "[num_tokens, hidden_size]", num_dims=2)
    num_tokens, hidden_size = x.shape
    numbers_of_byte = 2 if gate_up.dtype == torch.uint8 else 1
    shape = list(gate_up.shape)
    if len(shape) != 3 or shape[1] % 2 or shape[2] * numbers_of_byte != hidden_size or 0 in shape:
        columns = f"{hidden_size}{' / 2' if numbers_of_byte == 2 else ''}"
        raise ValueError(f"gate_up: expected shape [num_experts, 2 * intermediate_size, {columns}], got {shape}")
    num_experts, intermediate_size = shape[0], shape[1] // 2
    if num_experts > MAX_EXPERTS:
        raise ValueError(f"gate_up: at most {MAX_EXPERTS} experts, got shape {shape}")
    dtype = x.dtype if gate_up_scales is None else gate_up.dtype
    check_like("gate_up", gate_up, (shape[0], shape[1], shape[2]), dtype, x)
    check_like("down", down, (num_experts, hidden_size, intermediate_size // numbers_of_byte), dtype, x)
    if expert_ids.dim() != 2 or expert_ids.shape[0] != num_tokens or expert_ids.shape[1] == 0:
        raise ValueError(f"expert_ids: expected shape [{num_tokens}, experts of a token], got {list(expert_ids.shape)}")
    check_like("expert_ids", expert_ids, tuple(expert_ids.shape), torch.int64, x)
    check_like("expert_weights", expert_weights, tuple(expert_ids.shape), torch.float32, x)
    if (gate_up_scales is None) != (down_scales is None):
        raise ValueError("gate_up_scales, down_scales: expected both or neither")
    if dtype != torch.uint8 and (gate_up_zeros is not None or down_zeros is not None):
        raise ValueError(f"gate_up_zeros, down_zeros: weights of {dtype} have none")
    if quantizes_input and dtype in (x.dtype, torch.uint8):
        raise ValueError(f"quantizes_input: weights of {dtype} take the input as it is")
    if gate_up_scales is None or down_scales is None:
        return
    if dtype == torch.uint8:
        _check_groups("gate_up", gate_up_scales, gate_up_zeros, gate_up)
        _check_groups("down", down_scales, down_zeros, down)
        return
    check_eight_bits(dtype)
    for name, scales, weight in (("gate_up_scales", gate_up_scales, gate_up), ("down_scales", down_scales, down)):
        _check_scales(name, scales, weight, is_by_block=gate_up_scales.dim() == 3, quantizes_input=quantizes_input)


def _check_scales(
    name: str, scales: torch.Tensor, weight: torch.Tensor, *, is_by_block: bool, quantizes_input: bool
) -> None:
    num_experts, out_features, in_features = weight.shape
    if not is_by_block:
        check_like(name, scales, (num_experts, out_features), torch.float32, weight)
        return
    blocks = (-(-out_features // SCALE_BLOCK), -(-in_features // SCALE_BLOCK))
    check_like(name, scales, (num_experts, *blocks), torch.float32, weight)
    if weight.dtype != torch.float8_e4m3fn or not quantizes_input or in_features % SCALE_BLOCK:
        raise ValueError(
            f"{name}: scales by block need weights of torch.float8_e4m3fn, got {weight.dtype}, quantizes_input, got "
            f"{quantizes_input}, and in_features that are a multiple of {SCALE_BLOCK}, got {in_features}"
        )


def _check_groups(name: str, scales: torch.Tensor, zeros: torch.Tensor | None, packed: torch.Tensor) -> None:
    """The scales and zeros of weights of four bits."""
    num_experts, out_features, num_bytes = packed.shape
    num_groups = scales.shape[2] if scales.dim() == 3 else 0
    if num_groups == 0 or 2 * num_bytes % num_groups:
        shape = f"[{num_experts}, {out_features}, num_groups]"
        raise ValueError(f"{name}_scales: expected shape {shape}, got {list(scales.shape)}")
    if scales.dtype not in FLOAT_DTYPES:
        raise ValueError(f"{name}_scales: expected float32, float16 or bfloat16, got {scales.dtype}")
    check_like(f"{name}_scales", scales, (num_experts, out_features, num_groups), scales.dtype, packed)
    chunk_of(2 * num_bytes // num_groups)
    if zeros is not None:
        check_like(f"{name}_zeros", zeros, tuple(scales.shape), torch.uint8, packed)
