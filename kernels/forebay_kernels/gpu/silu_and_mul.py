"""The gated MLP's activation silu(gate) · up in Triton."""

import torch
import triton
import triton.language as tl

from forebay_kernels.gpu.launch import Launch, block_of, warps_of

# Output elements of one program: 16-byte loads of gate and of up for each thread of 4 warps. By arithmetic: not yet
# measured on a GPU.
_MAX_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _silu_and_mul_kernel(  # type: ignore[no-untyped-def]
    activated_ptr,  # [num_tokens, intermediate_size], contiguous
    gate_up_ptr,  # [num_tokens, 2 * intermediate_size]
    stride_gate_up_token,
    intermediate_size,
    BLOCK: tl.constexpr,
):
    """Compute BLOCK adjacent elements of one token's row: round(gate · sigmoid(gate)) · up."""
    # 64 bits: num_tokens * 2 * intermediate_size can pass 2**31.
    token = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < intermediate_size
    gate_ptr = gate_up_ptr + token * stride_gate_up_token + offs
    gate = tl.load(gate_ptr, mask=mask, other=0.0)
    up = tl.load(gate_ptr + intermediate_size, mask=mask, other=0.0)
    gate_float32 = gate.to(tl.float32)
    # Rounded before the product with up, as the definition does. exp overflows to infinity for a very negative gate,
    # and gate / infinity is the 0 that is wanted.
    silu = (gate_float32 / (1.0 + tl.exp(-gate_float32))).to(gate.dtype)
    activated = silu.to(tl.float32) * up.to(tl.float32)
    tl.store(activated_ptr + token * intermediate_size + offs, activated.to(gate.dtype), mask=mask)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Launch the kernel; argument and result as `forebay_kernels.silu_and_mul`."""
    num_tokens, width = gate_up.shape
    activated = torch.empty((num_tokens, width // 2), dtype=gate_up.dtype, device=gate_up.device)
    silu_and_mul_launch(activated, gate_up).run()
    return activated


def silu_and_mul_launch(activated: torch.Tensor, gate_up: torch.Tensor) -> Launch:
    """Return the launch of `silu_and_mul` that writes to activated, [num_tokens, intermediate_size]. Pure."""
    num_tokens, intermediate_size = activated.shape
    block = min(block_of(intermediate_size), _MAX_BLOCK)
    return Launch(
        kernel=_silu_and_mul_kernel,
        grid=(num_tokens, triton.cdiv(intermediate_size, block)),
        arguments={
            "activated_ptr": activated,
            "gate_up_ptr": gate_up,
            "stride_gate_up_token": gate_up.stride(0),
            "intermediate_size": intermediate_size,
            "BLOCK": block,
        },
        num_warps=warps_of(block, elements_per_thread=8),
    )
