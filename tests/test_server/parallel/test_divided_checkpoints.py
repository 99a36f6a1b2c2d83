"""Checkpoints that were quantized offline, divided between ranks: the numbers of one rank, or a refusal by name."""

from pathlib import Path

import pytest
import torch

from forebay_server.config import Quantization
from forebay_server.errors import StartupError
from forebay_server.parallel.group import ONE_RANK, RankGroup
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model
from forebay_server.weights.quantization import QuantizationOptions
from tests.test_server.models.forward import CPU, logits_of
from tests.test_server.models.tiny_models import save_tiny
from tests.test_server.parallel.ranks_in_threads import on_all_ranks
from tests.test_server.weights import writers
from tests.test_server.weights.test_quantized_checkpoints import KEEP
from tests.test_server.weights.writers import Scheme, save_quantized_llama

PROMPT = torch.randint(3, 127, (21,), generator=torch.Generator().manual_seed(4)).tolist()


def logits(folder: Path, options: QuantizationOptions, group: RankGroup = ONE_RANK) -> torch.Tensor:
    loaded = load_model(open_checkpoint(folder), torch.float32, CPU, 1 << 30, options=options, group=group)
    return logits_of(loaded.model, PROMPT, [13, 1])


@pytest.mark.parametrize("options", [QuantizationOptions(), KEEP], ids=["dequantized", "kept"])
@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param(writers.gptq(group_size=64, desc_act=True), id="gptq"),
        pytest.param(writers.compressed_packed(symmetric=False, actorder="group"), id="packed"),
    ],
)
def test_q1_columns_in_an_order_of_their_own_are_divided_with_their_scales(
    tmp_path: Path, scheme: Scheme, options: QuantizationOptions
) -> None:
    """vllm #7374: the groups of a row-parallel layer's columns are scattered over the ranks."""
    save_quantized_llama(tmp_path, scheme)
    expected = logits(tmp_path, options)
    gathered = on_all_ranks(2, lambda group: logits(tmp_path, options, group))[0]
    torch.testing.assert_close(gathered, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "scheme", [writers.block_fp8(), writers.compressed_fp8(strategy="block")], ids=["fp8", "float8"]
)
def test_q5_a_share_that_cuts_through_blocks_is_refused_by_the_layers_name(tmp_path: Path, scheme: Scheme) -> None:
    """vllm #52997, #54178, PR #33327: shares of 192 columns, blocks of 128; dequantized first, they can be divided."""
    save_quantized_llama(tmp_path, scheme)
    with pytest.raises(
        StartupError, match=r"layers\.0\.mlp\.down_proj\.weight cannot be divided .* group of 128"
    ) as caught:
        on_all_ranks(2, lambda group: logits(tmp_path, KEEP, group))
    assert caught.value.exit_code == 2
    exact = QuantizationOptions()
    found = on_all_ranks(2, lambda group: logits(tmp_path, exact, group))[0]
    torch.testing.assert_close(found, logits(tmp_path, exact), atol=1e-3, rtol=0)


@pytest.mark.parametrize("mode", ["int8", "int8-weight-only", "int4"])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mixtral", {"intermediate_size": 128}),
        ("qwen2_moe", {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "decoder_sparse_step": 1}),
    ],
)
def test_experts_that_are_quantized_while_loading_are_divided_with_their_scales(
    tmp_path: Path, name: str, sizes: dict[str, int], mode: Quantization
) -> None:
    """Each rank holds a part of every expert; scales are those of the whole rows."""
    folder = save_tiny(tmp_path / "model", name, num_hidden_layers=2, **sizes)[0]
    options = QuantizationOptions(mode=mode)
    expected = logits(folder, options)
    gathered = on_all_ranks(2, lambda group: logits(folder, options, group))[0]
    torch.testing.assert_close(gathered, expected, atol=1e-4, rtol=0)
    assert (expected - logits(folder, QuantizationOptions())).abs().max() > 1e-2  # they were quantized at all
