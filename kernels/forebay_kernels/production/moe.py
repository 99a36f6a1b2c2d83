"""Production launches of mixtures of experts: few tokens and many, experts in each format."""

import torch

from forebay_kernels.production.tensors import Production, tensor
from forebay_kernels.shapes import MOE_SHAPES, MoeShape
from forebay_kernels.targets import Target

_FEW, _MANY = 16, 4096
_FP8 = torch.float8_e4m3fn


def moe_launches(shape: MoeShape, dtype: torch.dtype, target: Target) -> Production:
    """Yield every step of one model's experts; formats that no checkpoint of the second has: of the first alone."""
    from forebay_kernels.gpu.fused_moe import sort_launch, weighted_sum_launch
    from forebay_kernels.gpu.grouped_int4_matmul import grouped_int4_matmul_launch
    from forebay_kernels.gpu.grouped_matmul import grouped_matmul_launch

    starts = tensor(shape.num_experts + 1, dtype=torch.int32)
    hidden_size, width = shape.hidden_size, 2 * shape.intermediate_size
    by_channel = tensor(shape.num_experts, width, dtype=torch.float32)
    by_block = tensor(shape.num_experts, width // 128, hidden_size // 128, dtype=torch.float32)
    for num_tokens in (_FEW, _MANY):
        num_pairs = num_tokens * shape.experts_of_token
        name = f"{num_tokens} by {shape.name}"
        order = tensor(num_pairs, dtype=torch.int32)
        choices = (num_tokens, shape.experts_of_token)
        yield "fused_moe", f"{name}, sort", sort_launch(order, starts, tensor(*choices, dtype=torch.int64))

        gate_up_of_pairs = tensor(num_pairs, width, dtype=dtype)
        by_row = tensor(num_tokens, dtype=torch.float32)
        by_row_and_block = tensor(num_tokens, hidden_size // 128, dtype=torch.float32)
        for form, x_dtype, x_scales, weight_dtype, weight_scales in (
            ("plain", dtype, None, dtype, None),
            ("fp8 by block", _FP8, by_row_and_block, _FP8, by_block),
            ("fp8", _FP8, by_row, _FP8, by_channel),
            ("int8", torch.int8, by_row, torch.int8, by_channel),
            ("fp8 weights", dtype, None, _FP8, by_channel),
            ("int8 weights", dtype, None, torch.int8, by_channel),
        )[: 6 if shape is MOE_SHAPES[0] else 2]:
            x = tensor(num_tokens, hidden_size, dtype=x_dtype)
            gate_up = tensor(shape.num_experts, width, hidden_size, dtype=weight_dtype)
            yield (
                "fused_moe",
                f"{name}, gate_up, {form}",
                grouped_matmul_launch(
                    gate_up_of_pairs, x, x_scales, gate_up, weight_scales, order, starts, target=target
                ),
            )

        packed = tensor(shape.num_experts, width, hidden_size // 2, dtype=torch.uint8)
        groups = (shape.num_experts, width, hidden_size // 128)
        scales, zeros = tensor(*groups, dtype=torch.float16), tensor(*groups, dtype=torch.uint8)
        yield "fused_moe", f"{name}, gate_up, int4 by 128", grouped_int4_matmul_launch(
            gate_up_of_pairs, tensor(num_tokens, hidden_size, dtype=dtype), packed, scales, zeros, order, starts,
            target=target,
        )  # fmt: skip

        inner = tensor(num_pairs, shape.intermediate_size, dtype=dtype)
        down = tensor(shape.num_experts, hidden_size, shape.intermediate_size, dtype=dtype)
        down_of_pairs = tensor(num_pairs, hidden_size, dtype=dtype)
        yield (
            "fused_moe",
            f"{name}, down, plain",
            grouped_matmul_launch(down_of_pairs, inner, None, down, None, order, starts, target=target),
        )
        output = tensor(num_tokens, hidden_size, dtype=dtype)
        launch = weighted_sum_launch(output, down_of_pairs, tensor(*choices, dtype=torch.float32))
        yield "fused_moe", f"{name}, sum", launch
