"""The launches that production makes: every kernel at the sizes of real models, for the compile gate."""

import torch

from forebay_kernels.production.attention import attention_launches, cache_launches
from forebay_kernels.production.elementwise import elementwise_launches, quantizing_launches
from forebay_kernels.production.matmul import int4_launches, matmul_launches
from forebay_kernels.production.moe import moe_launches
from forebay_kernels.production.sampling import copying_launches, sampling_launches
from forebay_kernels.production.tensors import HEAD_SHAPES, Production
from forebay_kernels.shapes import MODEL_SHAPES, MOE_SHAPES
from forebay_kernels.targets import Target


def production_launches(target: Target, dtype: torch.dtype = torch.bfloat16) -> Production:
    """Yield every kernel at every production size, as it would be launched on this target."""
    for shape in MODEL_SHAPES:
        yield from elementwise_launches(shape, dtype)
    yield from quantizing_launches(MODEL_SHAPES[1], dtype)
    for shape in HEAD_SHAPES:
        yield from cache_launches(shape, dtype)
        yield from attention_launches(shape, dtype, target)
        yield from copying_launches(shape, dtype)
    yield from matmul_launches(MODEL_SHAPES[1], dtype, target)
    yield from int4_launches(MODEL_SHAPES[1], dtype, target)
    for moe_shape in MOE_SHAPES:
        yield from moe_launches(moe_shape, dtype, target)
    yield from sampling_launches()
