"""How a model is divided: every architecture's logits from 2 and 4 ranks equal those from one."""

import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from forebay_kernels.fp8_weights import Fp8Weight
from forebay_kernels.int4_weights import Int4Weight
from forebay_kernels.int8_weights import Int8Weight
from forebay_server.config import Quantization
from forebay_server.errors import StartupError
from forebay_server.layers.weight_cut import Cut
from forebay_server.layers.weight_forms import LinearWeight, WeightFormat, dequantize, weight_shape
from forebay_server.models.decoder import CausalLM, DecoderLayer
from forebay_server.models.hugging_face_config import config_from_hugging_face
from forebay_server.models.model_config import ModelConfig
from forebay_server.parallel.group import ONE_RANK, OneRank, RankGroup
from forebay_server.parallel.shares import check_shares, head_shares, vocabulary_share
from forebay_server.parallel.stages import Stage
from forebay_server.weights import loader
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.convert import convert
from forebay_server.weights.loader import load_model
from forebay_server.weights.quantization import QuantizationOptions
from tests.test_server.models.forward import load, logits_of
from tests.test_server.models.tiny_llama import tiny_config
from tests.test_server.models.tiny_models import ARCHITECTURES, save_tiny
from tests.test_server.parallel.ranks_in_threads import ThreadGroup, on_all_ranks

PROMPT = torch.randint(3, 127, (21,), generator=torch.Generator().manual_seed(4)).tolist()


def split_logits(folder: Path, size: int, num_stages: int = 1) -> torch.Tensor:
    """The logits that the first rank gathers: `size` ranks share each of the layers of each stage."""

    def work(group: ThreadGroup) -> torch.Tensor:
        stages = [load(folder, group=group, stage=Stage(index, num_stages)) for index in range(num_stages)]
        return logits_of(stages, PROMPT, [13, 1, 1])

    return on_all_ranks(size, work)[0]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_of_several_ranks_equal_those_of_one(tmp_path: Path, name: str, size: int) -> None:
    """With 2 key-value heads, 4 ranks hold each twice; a vocabulary of 127 leaves the last rank padding."""
    folder, _ = save_tiny(tmp_path, name, vocab_size=127)
    expected = logits_of(load(folder), PROMPT, [13, 1, 1])
    assert (split_logits(folder, size) - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_of_several_stages_equal_those_of_one(tmp_path: Path, name: str, size: int) -> None:
    """Bit for bit: stages cut the arithmetic nowhere. Three stages of 4 layers are not even."""
    folder, _ = save_tiny(tmp_path, name, vocab_size=127)
    expected = split_logits(folder, size)
    for num_stages in (2, 3):
        assert torch.equal(split_logits(folder, size, num_stages), expected)


def config(**changes: object) -> ModelConfig:
    return replace(config_from_hugging_face(tiny_config(), "config.json"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({}, 3, "--tensor-parallel-size 3: 4 attention heads cannot be divided by it"),
        ({"num_heads": 12, "num_kv_heads": 4, "intermediate_size": 96}, 6, "4 key-value heads can neither"),
        ({"intermediate_size": 99}, 2, "99 rows of the feed-forward part"),
    ],
)
def test_sizes_that_cannot_be_divided_are_refused(changes: dict[str, object], size: int, message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        check_shares(config(**changes), size)
    assert caught.value.exit_code == 2


def test_each_query_head_meets_its_key_head_on_every_rank() -> None:
    for num_heads, num_kv_heads, size in ((8, 8, 4), (8, 2, 2), (8, 2, 4), (8, 1, 8), (32, 4, 8), (16, 2, 16)):
        one = config(num_heads=num_heads, num_kv_heads=num_kv_heads)
        check_shares(replace(one, intermediate_size=96 * size), size)
        seen = []
        for rank in range(size):
            queries, kv = head_shares(one, rank, size)
            assert queries.size % kv.size == 0
            for local, head in enumerate(range(queries.start, queries.stop)):
                seen.append(head)
                assert kv.start + local // (queries.size // kv.size) == head // (num_heads // num_kv_heads)
        assert seen == list(range(num_heads))


@pytest.mark.parametrize(("vocab_size", "size"), [(128, 4), (127, 4), (5, 4), (1, 2)])
def test_every_row_of_the_vocabulary_is_held_once(vocab_size: int, size: int) -> None:
    shares = [vocabulary_share(vocab_size, rank, size) for rank in range(size)]
    assert [row for share in shares for row in range(share.start, share.stop)] == list(range(vocab_size))
    assert max(share.size for share in shares) == -(-vocab_size // size)


def test_a_cut_takes_ranges_of_rows_and_columns() -> None:
    matrix = torch.arange(24.0).view(6, 4)
    rows = Cut(0, ((0, 1), (3, 5)))
    assert torch.equal(rows.of_tensor(matrix), matrix[[0, 3, 4]])
    assert rows.shape((6, 4)) == (3, 4)
    assert torch.equal(Cut(1, ((1, 3),)).of_tensor(matrix), matrix[:, 1:3])


class Rank(OneRank):
    """A rank that only loads: it never meets the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def held(folder: Path, group: RankGroup, options: QuantizationOptions) -> CausalLM:
    checkpoint = open_checkpoint(folder)
    return load_model(checkpoint, torch.float32, torch.device("cpu"), 1 << 30, options=options, group=group).model


@pytest.mark.parametrize("mode", ["int8", "int4", "fp8"])
def test_quantized_weights_are_divided_without_changing_a_number(tmp_path: Path, mode: Quantization) -> None:
    """What the ranks hold, put together, is what one rank holds: scales are those of whole rows and groups."""
    folder, _ = save_tiny(tmp_path, "qwen3", intermediate_size=128)
    options = QuantizationOptions(mode=mode, group_size=32)
    one = cast(DecoderLayer, held(folder, ONE_RANK, options).layers[0])
    ranks = [cast(DecoderLayer, held(folder, Rank(rank, 2), options).layers[0]) for rank in range(2)]

    def values(layer: DecoderLayer, part: str, name: str) -> torch.Tensor:
        return dequantize(getattr(getattr(layer, part), name).weights[0])

    for part, name, dim in (("self_attn", "o_proj", 1), ("mlp", "down_proj", 1)):
        assert isinstance(getattr(getattr(one, part), name).weights[0], Int8Weight | Int4Weight | Fp8Weight)
        assert torch.equal(torch.cat([values(rank, part, name) for rank in ranks], dim), values(one, part, name))
    gate_up = [values(rank, "mlp", "gate_up_proj").chunk(2) for rank in ranks]
    together = torch.cat([gate_up[0][0], gate_up[1][0], gate_up[0][1], gate_up[1][1]])
    assert torch.equal(together, values(one, "mlp", "gate_up_proj"))


def test_a_cut_through_a_group_is_refused_by_the_layers_name(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path, "llama")
    options = QuantizationOptions(mode="int4", group_size=32)
    with pytest.raises(
        StartupError, match=r"model.layers.0.* cannot be divided between the ranks: .* group of 32"
    ) as caught:
        held(folder, Rank(0, 4), options)
    assert caught.value.exit_code == 2


def test_a_rank_converts_only_its_own_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are mapped, so what is not looked at is not read."""
    folder, _ = save_tiny(tmp_path, "llama")
    seen = 0

    def watched(weight: LinearWeight, target: WeightFormat, dtype: torch.dtype) -> LinearWeight:
        nonlocal seen
        seen += math.prod(weight_shape(weight))
        return convert(weight, target, dtype)

    monkeypatch.setattr(loader, "convert", watched)
    held(folder, ONE_RANK, QuantizationOptions())
    whole, seen = seen, 0
    held(folder, Rank(1, 2), QuantizationOptions())
    assert seen == whole // 2
