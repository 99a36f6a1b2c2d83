"""Speed of fused_moe: eight experts of a model's feed-forward size, two of them for a token, as Mixtral has them."""

import torch

from forebay_kernels.cases.case import Case
from forebay_kernels.shapes import ModelShape

_NUM_EXPERTS, _NUM_CHOICES = 8, 2


def make_case(shape: ModelShape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """One layer's experts, of which num_tokens tokens choose in turn."""
    hidden_size, intermediate_size = shape.hidden_size, shape.intermediate_size
    x = torch.randn(num_tokens, hidden_size, device=device, dtype=dtype)
    gate_up = torch.randn(_NUM_EXPERTS, 2 * intermediate_size, hidden_size, device=device, dtype=dtype)
    down = torch.randn(_NUM_EXPERTS, hidden_size, intermediate_size, device=device, dtype=dtype)
    gate_up *= hidden_size**-0.5
    down *= intermediate_size**-0.5
    expert_ids = torch.arange(num_tokens * _NUM_CHOICES, device=device).view(num_tokens, -1) % _NUM_EXPERTS
    expert_weights = torch.rand(num_tokens, _NUM_CHOICES, device=device)
    num_used = min(num_tokens * _NUM_CHOICES, _NUM_EXPERTS)
    bytes_of_expert = (gate_up.nbytes + down.nbytes) // _NUM_EXPERTS
    return Case(
        (x, gate_up, down, expert_ids, expert_weights),
        bytes_moved=2 * x.nbytes + num_used * bytes_of_expert + expert_ids.nbytes + expert_weights.nbytes,
        flops=6 * num_tokens * _NUM_CHOICES * hidden_size * intermediate_size,
        tolerance=0.05,
    )
