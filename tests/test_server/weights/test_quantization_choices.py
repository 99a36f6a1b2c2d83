"""Which form each weight gets, and quantizing while loading: forms, exclusions, bytes, errors."""

from pathlib import Path
from typing import Any

import pytest
import torch

from forebay_kernels.int4_weights import Int4Weight
from forebay_kernels.int8_weights import Int8Weight
from forebay_server import LLM
from forebay_server.config import EngineConfig
from forebay_server.engine.device import quantization_options
from forebay_server.errors import ExitCode, StartupError
from forebay_server.layers.weight_forms import PLAIN, WeightFormat, dequantize
from forebay_server.models.decoder import CausalLM
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.convert import convert, quantize_fp8, quantize_int4
from forebay_server.weights.loader import LoadedWeights, load_model, weight_bytes
from forebay_server.weights.quantization import QuantizationOptions, WeightPlace, matches, target_format
from tests.test_server.models.tiny_llama import save_tiny_llama

CPU = torch.device("cpu")
DTYPE = torch.bfloat16
LAYER = WeightPlace("model.layers.3.mlp.down_proj", 576)
HEAD = WeightPlace("lm_head", 576, is_head=True)
TIED = WeightPlace("model.embed_tokens", 576, is_table=True, is_head=True)
TABLE = WeightPlace("model.embed_tokens", 576, is_table=True)
ROUTER = WeightPlace("model.layers.3.mlp.gate", 576, is_quantizable=False)
GROUPS_OF_32 = WeightFormat("int8", 32)


@pytest.mark.parametrize(
    ("mode", "place", "stored", "expected"),
    [
        ("none", LAYER, GROUPS_OF_32, PLAIN),
        ("int8", LAYER, PLAIN, WeightFormat("int8", quantizes_input=True)),
        ("int8", HEAD, PLAIN, WeightFormat("int8", quantizes_input=True)),
        ("int8", TIED, PLAIN, WeightFormat("int8", quantizes_input=True)),
        ("int8", TABLE, PLAIN, PLAIN),
        ("int8", ROUTER, PLAIN, PLAIN),
        ("int8", LAYER, GROUPS_OF_32, WeightFormat("int8", 32, quantizes_input=True)),
        ("int8-weight-only", LAYER, PLAIN, WeightFormat("int8")),
        ("int4", LAYER, PLAIN, WeightFormat("int4", 64, scale_bytes=2)),  # 128 does not divide 576
        ("int4", HEAD, PLAIN, WeightFormat("int8")),
        ("int4", WeightPlace("x", 100), PLAIN, WeightFormat("int8")),
        ("fp8", LAYER, PLAIN, WeightFormat("fp8", quantizes_input=True)),
        ("auto", LAYER, GROUPS_OF_32, GROUPS_OF_32),
        ("auto", LAYER, WeightFormat("fp8", 128), PLAIN),
        ("auto", LAYER, PLAIN, PLAIN),
    ],
)
def test_form_of_a_weight(mode: Any, place: WeightPlace, stored: WeightFormat, expected: WeightFormat) -> None:
    options = QuantizationOptions(mode=mode, group_size=128, kept_kinds=frozenset({"int8", "int4"}))
    assert target_format(place, stored, options) == expected


@pytest.mark.parametrize(
    ("pattern", "is_excluded"),
    [
        ("lm_head", False),
        ("down_proj", True),
        ("own_proj", False),
        ("mlp.down_proj", True),
        ("model.layers.3.mlp.down_proj", True),
        ("model.layers.3", False),
        (r"re:.*layers\.3\.", True),
        (r"re:layers\.3\.", False),
    ],
)
def test_names_are_whole_or_ends_or_expressions_from_the_start(pattern: str, is_excluded: bool) -> None:
    assert matches(LAYER.name, pattern) is is_excluded
    options = QuantizationOptions(mode="int8", exclude=(pattern,))
    assert (target_format(LAYER, PLAIN, options) == PLAIN) is is_excluded


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "model.embed_tokens"])
def test_a_tied_head_goes_by_both_of_its_names(name: str) -> None:
    assert target_format(TIED, PLAIN, QuantizationOptions(mode="int8", exclude=(name,))) == PLAIN


def test_float32_and_auto_mean_exact_weights() -> None:
    options = quantization_options(EngineConfig(model="m", dtype="float32"), CPU, is_compiled=True)
    assert options.mode == "none"
    options = quantization_options(EngineConfig(model="m", dtype="float32", quantization="int8"), CPU)
    assert options.mode == "int8"


def test_cpus_keep_forms_only_where_they_are_computed_well() -> None:
    config = EngineConfig(model="m")
    assert not quantization_options(config, CPU, is_compiled=False).kept_kinds
    assert quantization_options(config, CPU, is_compiled=True).kept_kinds == {"int8", "int4"}
    with pytest.raises(StartupError) as caught:
        quantization_options(EngineConfig(model="m", quantization="fp8"), CPU)
    assert caught.value.exit_code == ExitCode.BAD_CONFIGURATION


@pytest.mark.parametrize(
    ("target", "largest_error"),
    [(WeightFormat("int8"), 0.01), (GROUPS_OF_32, 0.008), (WeightFormat("int4", 32), 0.1), (WeightFormat("fp8"), 0.04)],
)
def test_converted_weights_are_close(target: WeightFormat, largest_error: float) -> None:
    weight = torch.randn(70, 4096, generator=torch.Generator().manual_seed(0))  # more than one chunk of rows
    converted = dequantize(convert(weight, target, torch.float32))
    assert (converted - weight).norm() / weight.norm() < largest_error


def test_rows_of_zeros_stay_zeros() -> None:
    weight = torch.zeros(4, 64)
    for quantized in (
        quantize_int4(weight, 32),
        quantize_fp8(weight),
        convert(weight, WeightFormat("int8"), DTYPE),
    ):
        assert not dequantize(quantized).any()


DTYPE = torch.bfloat16


def load(folder: Path, **options: Any) -> LoadedWeights:
    return load_model(open_checkpoint(folder), DTYPE, CPU, 1 << 30, options=QuantizationOptions(**options))


def down_proj(model: CausalLM) -> Any:
    return list[Any](model.layers)[0].mlp.down_proj.weights[0]


def test_loading_with_int8_quantizes_layers_and_the_tied_head(tmp_path: Path) -> None:
    loaded = load(save_tiny_llama(tmp_path), mode="int8")
    assert isinstance(down_proj(loaded.model), Int8Weight)
    assert isinstance(loaded.model.embed_tokens.weights[0], Int8Weight)
    plain = weight_bytes(load(tmp_path, mode="none").model)
    assert weight_bytes(loaded.model) < 0.6 * plain
    (conversion,) = loaded.conversions
    assert (conversion.stored, conversion.held, conversion.num_weights) == ("F32", "int8", 15)
    assert 0.001 < conversion.relative_error < 0.02


def test_loading_with_int4_keeps_the_head_in_eight_bits(tmp_path: Path) -> None:
    model = load(save_tiny_llama(tmp_path), mode="int4").model
    assert isinstance(down_proj(model), Int4Weight)
    assert isinstance(model.embed_tokens.weights[0], Int8Weight)


def test_excluded_layers_stay_in_dtype(tmp_path: Path) -> None:
    model = load(save_tiny_llama(tmp_path), mode="int8", exclude=("down_proj", "lm_head")).model
    assert down_proj(model).dtype == DTYPE
    assert isinstance(model.embed_tokens.weights[0], torch.Tensor)
    assert isinstance(list[Any](model.layers)[0].mlp.gate_up_proj.weights[0], Int8Weight)


def test_weights_that_do_not_fit_in_dtype_may_fit_in_int8(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path)
    available = weight_bytes(load(folder, mode="int8").model)
    checkpoint = open_checkpoint(folder)
    load_model(checkpoint, DTYPE, CPU, available, options=QuantizationOptions(mode="int8"))
    with pytest.raises(StartupError) as caught:
        load_model(checkpoint, DTYPE, CPU, available)
    assert caught.value.exit_code == ExitCode.WEIGHTS_DO_NOT_FIT


@pytest.mark.parametrize("mode", ["int8", "int8-weight-only", "int4"])
def test_the_engine_answers_with_quantized_weights(tmp_path: Path, mode: str) -> None:
    llm = LLM(str(save_tiny_llama(tmp_path)), quantization=mode, kv_cache_tokens=128)
    assert len(llm.generate([[5, 6, 7]])[0].token_ids) > 0
    assert llm.facts.conversions
