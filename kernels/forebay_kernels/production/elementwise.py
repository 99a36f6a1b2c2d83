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


def quantizing_launches(shape: ModelShape, dtype: torch.dtype) -> Production:
    """Yield quantization of one model's activations, alone and fused, to each format of eight bits."""
    from forebay_kernels.gpu.quantize_per_token import quantize_per_token_launch
    from forebay_kernels.gpu.rms_norm_quantize import add_rms_norm_quantize_launch, rms_norm_quantize_launch
    from forebay_kernels.gpu.silu_and_mul import gelu_and_mul_launch
    from forebay_kernels.gpu.silu_and_mul_quantize import gelu_and_mul_quantize_launch, silu_and_mul_quantize_launch

    rows, weight = tensor(NUM_TOKENS, shape.hidden_size, dtype=dtype), tensor(shape.hidden_size, dtype=dtype)
    gate_up = tensor(NUM_TOKENS, 2 * shape.intermediate_size, dtype=dtype)
    scales = tensor(NUM_TOKENS, dtype=torch.float32)
    hidden, intermediate = f"hidden {shape.hidden_size}", f"intermediate {shape.intermediate_size}"
    activated = tensor(NUM_TOKENS, shape.intermediate_size, dtype=dtype)
    yield "gelu_and_mul", intermediate, gelu_and_mul_launch(activated, gate_up)
    for name, eight_bits in (("int8", torch.int8), ("fp8", torch.float8_e4m3fn)):
        quantized = tensor(NUM_TOKENS, shape.hidden_size, dtype=eight_bits)
        wide = tensor(NUM_TOKENS, shape.intermediate_size, dtype=eight_bits)
        yield "quantize_per_token", f"{hidden}, {name}", quantize_per_token_launch(quantized, scales, rows)
        launch = rms_norm_quantize_launch(quantized, scales, rows, weight, 1e-5)
        yield "rms_norm_quantize", f"{hidden}, {name}", launch
        launch = add_rms_norm_quantize_launch(quantized, scales, rows, rows, rows, weight, 1e-5)
        yield "add_rms_norm_quantize", f"{hidden}, {name}", launch
        yield "silu_and_mul_quantize", f"{intermediate}, {name}", silu_and_mul_quantize_launch(wide, scales, gate_up)
        yield "gelu_and_mul_quantize", f"{intermediate}, {name}", gelu_and_mul_quantize_launch(wide, scales, gate_up)
    if shape.hidden_size % 128 == 0:
        groups = tensor(NUM_TOKENS, shape.hidden_size // 128, dtype=torch.float32)
        yield "quantize_per_token", f"{hidden}, fp8 by 128", quantize_per_token_launch(quantized, groups, rows)
