"""The gated MLP's activations in Triton: silu(gate) · up and gelu(gate) · up."""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.launch import Launch, block_of, warps_of

# Output elements of one program: 16-byte loads of gate and of up for each thread of 4 warps. By arithmetic: not yet
# measured on a GPU.
_MAX_BLOCK = 1024


SILU = tl.constexpr(0)
GELU = tl.constexpr(1)


@triton.jit  # type: ignore[untyped-decorator]
def activate(gate, up, ACTIVATION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute round(activation(gate)) · up, rounded again: as the definition does."""
    gate_float32 = gate.to(tl.float32)
    # exp overflows to infinity far from zero, and 1 / infinity is the 0 that is wanted.
    if ACTIVATION == SILU:
        activated = gate_float32 / (1.0 + tl.exp(-gate_float32))
    else:
        # tanh(u) = 1 - 2 / (1 + exp(2u)), u = sqrt(2 / pi) · (gate + 0.044715 · gate³)
        u = 0.7978845608028654 * (gate_float32 + 0.044715 * gate_float32 * gate_float32 * gate_float32)
        activated = gate_float32 * (1.0 - 1.0 / (1.0 + tl.exp(2.0 * u)))
    return (activated.to(gate.dtype).to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _gated_kernel(  # type: ignore[no-untyped-def]
    activated_ptr,  # [num_tokens, intermediate_size], contiguous
    gate_up_ptr,  # [num_tokens, 2 * intermediate_size]
    stride_gate_up_token,
    intermediate_size,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute BLOCK adjacent elements of one token's row."""
    # 64 bits: num_tokens * 2 * intermediate_size can pass 2**31.
    token = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < intermediate_size
    gate_ptr = gate_up_ptr + token * stride_gate_up_token + offs
    gate = tl.load(gate_ptr, mask=mask, other=0.0)
    up = tl.load(gate_ptr + intermediate_size, mask=mask, other=0.0)
    activated = activate(gate, up, ACTIVATION)
    tl.store(activated_ptr + token * intermediate_size + offs, activated, mask=mask)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Launch the kernel; argument and result as `forebay_kernels.silu_and_mul`."""
    activated = _activated_of(gate_up)
    silu_and_mul_launch(activated, gate_up).run()
    return activated


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Launch the kernel; argument and result as `forebay_kernels.gelu_and_mul`."""
    activated = _activated_of(gate_up)
    gelu_and_mul_launch(activated, gate_up).run()
    return activated


def silu_and_mul_launch(activated: torch.Tensor, gate_up: torch.Tensor) -> Launch:
    """Return the launch of `silu_and_mul` that writes to activated, [num_tokens, intermediate_size]. Pure."""
    return _launch(activated, gate_up, SILU)


def gelu_and_mul_launch(activated: torch.Tensor, gate_up: torch.Tensor) -> Launch:
    """Return the launch of `gelu_and_mul` that writes to activated, [num_tokens, intermediate_size]. Pure."""
    return _launch(activated, gate_up, GELU)


def _activated_of(gate_up: torch.Tensor) -> torch.Tensor:
    num_tokens, width = gate_up.shape
    return torch.empty((num_tokens, width // 2), dtype=gate_up.dtype, device=gate_up.device)


def _launch(activated: torch.Tensor, gate_up: torch.Tensor, activation: tl.constexpr) -> Launch:
    num_tokens, intermediate_size = activated.shape
    block = min(block_of(intermediate_size), _MAX_BLOCK)
    return Launch(
        kernel=_gated_kernel,
        grid=(num_tokens, triton.cdiv(intermediate_size, block)),
        arguments={
            "activated_ptr": activated,
            "gate_up_ptr": gate_up,
            "stride_gate_up_token": gate_up.stride(0),
            "intermediate_size": intermediate_size,
            "ACTIVATION": activation.value,
            "BLOCK": block,
        },
        num_warps=warps_of(block, elements_per_thread=8),
    )
