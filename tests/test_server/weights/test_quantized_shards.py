"""Quantized checkpoints over several ranks: cut at borders of groups without changing a number, or refused by name."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from forebay_kernels.int4_weights import Int4Weight
from forebay_server.errors import StartupError
from forebay_server.layers.weight_forms import PLAIN, QuantizedWeight, dequantize
from forebay_server.models.decoder import CausalLM, DecoderLayer
from forebay_server.parallel.group import OneRank, RankGroup
from forebay_server.parallel.stages import WHOLE, Stage
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model, target_formats, weight_bytes
from tests.test_server.models.forward import logits_of
from tests.test_server.parallel.ranks_in_threads import ThreadGroup, on_all_ranks
from tests.test_server.weights.test_quantized_checkpoints import KEEP, SCHEMES
from tests.test_server.weights.writers import save_quantized_llama

CPU = torch.device("cpu")
PROMPT = torch.randint(3, 127, (21,), generator=torch.Generator().manual_seed(4)).tolist()
ACT_ORDER = {"gptq-act-order", "gptq-act-order-asymmetric", "packed-act-order", "packed-act-order-asymmetric"}
LARGE_GROUPS = {"gptq-asymmetric": 128, "awq-128": 128, "packed-asymmetric": 128, "float8-block": 128, "fp8-block": 128}
"""Half of the 384 inputs of down_proj are no whole groups of these."""
NUM_RANKS = 2


class Rank(OneRank):
    """A rank that only loads: it never meets the others."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, NUM_RANKS


def load(folder: Path, group: RankGroup, dtype: torch.dtype = torch.float32, stage: Stage = WHOLE) -> CausalLM:
    return load_model(open_checkpoint(folder), dtype, CPU, 1 << 30, options=KEEP, group=group, stage=stage).model


def layer_of(model: CausalLM) -> DecoderLayer:
    return cast(DecoderLayer, model.layers[0])


def rows_of(linear: Any) -> torch.Tensor:
    """The weight of a layer, dequantized, parts one after the other."""
    return torch.cat([dequantize(weight) for weight in linear.weights])


@pytest.mark.parametrize("name", sorted(SCHEMES.keys() - LARGE_GROUPS.keys()))
def test_what_ranks_hold_is_the_checkpoints_weight(tmp_path: Path, name: str) -> None:
    meaning = save_quantized_llama(tmp_path, SCHEMES[name])
    ranks = [layer_of(load(tmp_path, Rank(rank))) for rank in range(NUM_RANKS)]
    is_exact = not name.endswith("8-bits-asymmetric")  # no form of ours holds these
    for part, linear, dim in (("self_attn", "o_proj", 1), ("mlp", "down_proj", 1), ("self_attn", "qkv_proj", 0)):
        held = [rows_of(getattr(getattr(rank, part), linear)) for rank in ranks]
        if dim == 0:  # queries come first, and are even shares
            wanted, num_rows = meaning["model.layers.0.self_attn.q_proj.weight"], 128
            found = torch.cat([rows[:num_rows] for rows in held])
        else:
            wanted, found = meaning[f"model.layers.0.{part}.{linear}.weight"], torch.cat(held, 1)
        torch.testing.assert_close(found, wanted, atol=0 if is_exact else 0.04, rtol=0)


@pytest.mark.parametrize("name", LARGE_GROUPS)
def test_a_group_on_two_ranks_is_refused_by_the_layers_name(tmp_path: Path, name: str) -> None:
    save_quantized_llama(tmp_path, SCHEMES[name])
    message = r"model\.layers\.0\.mlp\.\w+_proj\.weight cannot be divided between the ranks: .*(group|block) of 128"
    with pytest.raises(StartupError, match=message) as caught:
        load(tmp_path, Rank(0))
    assert caught.value.exit_code == 2
    assert "--tensor-parallel-size" in (caught.value.suggestion or "")


@pytest.mark.parametrize("name", sorted(ACT_ORDER))
def test_groups_in_another_order_are_planned_as_they_are_held(tmp_path: Path, name: str) -> None:
    """Of a row-parallel layer a rank has some columns of every group: it holds them dequantized, in its dtype."""
    save_quantized_llama(tmp_path, SCHEMES[name])
    model = load(tmp_path, Rank(0), torch.bfloat16)
    layer = layer_of(model)
    for linear in (layer.self_attn.o_proj, cast(Any, layer.mlp).down_proj):
        assert [getattr(weight, "dtype", None) for weight in linear.weights] == [torch.bfloat16]
    assert all(isinstance(weight, Int4Weight) for weight in layer.self_attn.qkv_proj.weights)
    assert model.logits(torch.zeros(1, 256, dtype=torch.bfloat16)).isfinite().all()
    slots = model.slots()
    formats = target_formats(open_checkpoint(tmp_path), slots, KEEP)
    sizes = {name: getattr(slot, "held_shape", slot.shape) for name, slot in slots.items()}
    planned = sum(formats.get(name, PLAIN).num_bytes(size, torch.bfloat16) for name, size in sizes.items())
    orders_twice = 2 * 2 * 4 * 256  # of fused layers: planned for each part and kept once, where they are the same
    assert planned - 2 * orders_twice <= weight_bytes(model) <= planned


@pytest.mark.parametrize("name", ["gptq", "gptq-act-order", "gptq-whole-rows", "awq", "packed", "int8", "float8"])
def test_ranks_and_stages_answer_as_one_rank(tmp_path: Path, name: str) -> None:
    save_quantized_llama(tmp_path, SCHEMES[name])
    expected = logits_of(load(tmp_path, OneRank()), PROMPT, [13, 1])

    def work(group: ThreadGroup) -> torch.Tensor:
        return logits_of([load(tmp_path, group, stage=Stage(index, 2)) for index in range(2)], PROMPT, [13, 1])

    assert expected.std() > 0.1
    difference = (on_all_ranks(NUM_RANKS, work)[0] - expected).abs()
    assert difference.median() <= 1e-4
    # sums in another order end a last bit apart, and an input that is rounded to eight bits may become its neighbour
    assert difference.max() <= (0.1 if name in ("int8", "float8") else 1e-4)


def test_stages_keep_quantized_weights(tmp_path: Path) -> None:
    save_quantized_llama(tmp_path, SCHEMES["fp8-block"])
    whole = weight_bytes(load(tmp_path, OneRank()))
    stages = [load(tmp_path, OneRank(), stage=Stage(index, 2)) for index in range(2)]
    assert all(isinstance(layer_of(stage).self_attn.o_proj.weights[0], QuantizedWeight) for stage in stages)
    norm_bytes = 4 * 256  # every stage has the final norm's memory
    assert sum(map(weight_bytes, stages)) == whole + norm_bytes
