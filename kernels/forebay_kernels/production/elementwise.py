"""Production launches of the kernels that touch each element once."""

import torch

from forebay_kernels.production.tensors import NUM_TOKENS, Production, heads, heads_name, positions, tensor
from forebay_kernels.shapes import ModelShape


def elementwise_launches(shape: ModelShape, dtype: torch.dtype) -> Production:
    """Yield norms, rotary and activations of one model."""
    from forebay_kernels.gpu.rms_norm import add_rms_norm_launch, rms_norm_launch
    from forebay_kernels.gpu.rotary import rotary_launch
    from forebay_kernels.gpu.silu_and_mul import silu_and_mul_launch

    rows, weight = tensor(NUM_TOKENS, shape.hidden_size, dtype=dtype), tensor(shape.hidden_size, dtype=dtype)
    hidden = f"hidden {shape.hidden_size}"
    yield "rms_norm", hidden, rms_norm_launch(rows, rows, weight, 1e-5)
    yield "add_rms_norm", hidden, add_rms_norm_launch(rows, rows, rows, rows, weight, 1e-5)

    query, key, _ = heads(shape, dtype)
    token_positions, cos_sin_cache = positions(shape)
    yield "rotary", heads_name(shape), rotary_launch(query, key, query, key, token_positions, cos_sin_cache)

    activated, gate_up = (tensor(NUM_TOKENS, times * shape.intermediate_size, dtype=dtype) for times in (1, 2))
    yield "silu_and_mul", f"intermediate {shape.intermediate_size}", silu_and_mul_launch(activated, gate_up)
