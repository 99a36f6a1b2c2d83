"""The gated MLP's activations and the quantization of their result in one Triton launch.

Bound by memory. A row is longer than the registers of one program, so it is computed twice: once for its largest
magnitude, once to be stored; the second time it comes out of the GPU's cache.
"""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import as_bytes, format_of, inverse_scale, largest_of, quantize
from forebay_kernels.gpu.launch import Launch, block_of, warps_of
from forebay_kernels.gpu.silu_and_mul import GELU, SILU, activate

# Elements of a row at a time: 16 a thread at 8 warps. By arithmetic: not yet measured on a GPU.
_MAX_BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator]
def _gated_quantize_kernel(  # type: ignore[no-untyped-def]
    quantized_ptr,  # [num_tokens, intermediate_size], contiguous
    scales_ptr,  # [num_tokens], float32, contiguous
    gate_up_ptr,  # [num_tokens, 2 * intermediate_size]
    stride_gate_up_token,
    intermediate_size,
    largest,
    ACTIVATION: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Activate and quantize one token's row."""
    token = tl.program_id(0).to(tl.int64)
    gate_ptr = gate_up_ptr + token * stride_gate_up_token
    magnitudes = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, intermediate_size, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < intermediate_size
        gate = tl.load(gate_ptr + offs, mask=mask, other=0.0)
        up = tl.load(gate_ptr + intermediate_size + offs, mask=mask, other=0.0)
        magnitudes = tl.maximum(magnitudes, tl.abs(activate(gate, up, ACTIVATION).to(tl.float32)))
    magnitude = tl.max(magnitudes, 0)
    inverse = inverse_scale(magnitude, largest)
    tl.store(scales_ptr + token, magnitude / largest)
    for start in range(0, intermediate_size, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < intermediate_size
        gate = tl.load(gate_ptr + offs, mask=mask, other=0.0)
        up = tl.load(gate_ptr + intermediate_size + offs, mask=mask, other=0.0)
        activated = activate(gate, up, ACTIVATION).to(tl.float32)
        tl.store(quantized_ptr + token * intermediate_size + offs, quantize(activated * inverse, FORMAT), mask=mask)


def silu_and_mul_quantize(gate_up: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; arguments and results as `forebay_kernels.silu_and_mul_quantize`."""
    quantized, scales = _outputs(gate_up, dtype)
    silu_and_mul_quantize_launch(quantized, scales, gate_up).run()
    return quantized, scales


def gelu_and_mul_quantize(gate_up: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; arguments and results as `forebay_kernels.gelu_and_mul_quantize`."""
    quantized, scales = _outputs(gate_up, dtype)
    gelu_and_mul_quantize_launch(quantized, scales, gate_up).run()
    return quantized, scales


def silu_and_mul_quantize_launch(quantized: torch.Tensor, scales: torch.Tensor, gate_up: torch.Tensor) -> Launch:
    """Return the launch of `silu_and_mul_quantize` that writes to quantized and scales, both contiguous. Pure."""
    return _launch(quantized, scales, gate_up, SILU)


def gelu_and_mul_quantize_launch(quantized: torch.Tensor, scales: torch.Tensor, gate_up: torch.Tensor) -> Launch:
    """Return the launch of `gelu_and_mul_quantize` that writes to quantized and scales, both contiguous. Pure."""
    return _launch(quantized, scales, gate_up, GELU)


def _outputs(gate_up: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, width = gate_up.shape
    quantized = torch.empty((num_tokens, width // 2), dtype=dtype, device=gate_up.device)
    return quantized, torch.empty((num_tokens,), dtype=torch.float32, device=gate_up.device)


def _launch(quantized: torch.Tensor, scales: torch.Tensor, gate_up: torch.Tensor, activation: tl.constexpr) -> Launch:
    num_tokens, intermediate_size = quantized.shape
    block = min(block_of(intermediate_size), _MAX_BLOCK)
    return Launch(
        kernel=_gated_quantize_kernel,
        grid=(num_tokens,),
        arguments={
            "quantized_ptr": as_bytes(quantized),
            "scales_ptr": scales,
            "gate_up_ptr": gate_up,
            "stride_gate_up_token": gate_up.stride(0),
            "intermediate_size": intermediate_size,
            "largest": largest_of(quantized.dtype),
            "ACTIVATION": activation.value,
            "FORMAT": format_of(quantized.dtype),
            "BLOCK": block,
        },
        num_warps=warps_of(block, elements_per_thread=16),
    )
