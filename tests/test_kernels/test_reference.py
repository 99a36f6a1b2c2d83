"""The definitions against the Llama model of Hugging Face transformers, bit for bit."""

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from forebay_kernels import add_rms_norm, rms_norm, rotary, silu_and_mul
from tests.test_kernels.comparison import DEVICE, DTYPES, random_tensor


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_is_what_transformers_computes(dtype: torch.dtype) -> None:
    layer = LlamaRMSNorm(576, eps=1e-5).to(device=DEVICE, dtype=dtype)
    layer.weight.data = random_tensor(576, dtype=dtype, seed=1)
    x = random_tensor(5, 576, dtype=dtype, seed=2, scale=3)
    residual = random_tensor(5, 576, dtype=dtype, seed=3, scale=3)
    with torch.no_grad():
        expected, expected_sum = layer(x), layer(residual + x)
        normed, new_residual = add_rms_norm(x, residual, layer.weight, 1e-5)
        assert torch.equal(rms_norm(x, layer.weight, 1e-5), expected)
    assert torch.equal(normed, expected_sum)
    assert torch.equal(new_residual, residual + x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul_is_what_transformers_computes(dtype: torch.dtype) -> None:
    gate_up = random_tensor(5, 2 * 1536, dtype=dtype, seed=1, scale=4)
    gate, up = gate_up.chunk(2, dim=-1)
    assert torch.equal(silu_and_mul(gate_up), ACT2FN["silu"](gate) * up)


def test_rotary_is_what_transformers_computes_in_float32() -> None:
    query = random_tensor(5, 9, 64, dtype=torch.float32, seed=1)
    key = random_tensor(5, 3, 64, dtype=torch.float32, seed=2)
    angles = random_tensor(32, 32, dtype=torch.float32, seed=3)
    positions = torch.tensor([31, 0, 7, 7, 30], device=DEVICE)
    both_halves = torch.cat((angles, angles), dim=-1)[positions]

    turned = rotary(query, key, positions, torch.cat((angles.cos(), angles.sin()), dim=-1))

    # transformers wants [batch, heads, tokens, head_dim].
    expected = apply_rotary_pos_emb(
        query.transpose(0, 1)[None], key.transpose(0, 1)[None], both_halves.cos()[None], both_halves.sin()[None]
    )
    for ours, theirs in zip(turned, expected, strict=True):
        assert torch.equal(ours, theirs[0].transpose(0, 1))
