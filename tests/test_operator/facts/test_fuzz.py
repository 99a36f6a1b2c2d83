"""Damaged and nonsensical metadata: always the facts, or one line that names the file; never anything else."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay_operator.catalogue.accelerators import accelerators
from forebay_operator.facts import FactsError, ModelFacts
from forebay_operator.facts.inspect_model import facts_of_config, inspect_model
from forebay_operator.planner import KVBudget, PlanRequest
from forebay_operator.planner.plan import plan
from tests.test_operator.facts.gguf_files import write_gguf
from tests.test_operator.facts.test_architectures import BASE, CONFIGS

NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 2**31, 2**31 + 1, 10**18]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.lists(st.integers(-2, 2), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
QUANTIZATIONS: list[dict[str, Any]] = [
    {},
    {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}},
    {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}},
    {"quantization_config": {"quant_method": "compressed-tensors",
                             "config_groups": {"g": {"weights": {"type": "int", "num_bits": 4, "group_size": 32}}}}},
]  # fmt: skip


def check(facts: ModelFacts) -> None:
    """Whatever facts came out, they go through JSON and can be planned or refused."""
    assert ModelFacts.from_json(facts.to_json()) == facts
    for name in ("h100-80gb", "t4-16gb"):
        plan(PlanRequest(facts=facts, accelerator=accelerators()[name], kv_budget=KVBudget("sequences", 1)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(CONFIGS), st.sampled_from(QUANTIZATIONS), st.data())
def test_configs_with_wrong_values_and_missing_keys(
    family: tuple[str, dict[str, Any]], quantization: dict[str, Any], data: st.DataObject
) -> None:
    config: dict[str, Any] = {**BASE, **family[1], **quantization, "model_type": family[0]}
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=2, unique=True)):
        if data.draw(st.booleans()):
            del config[key]
        else:
            config[key] = data.draw(NONSENSE)
    if isinstance(inner := config.get("quantization_config"), dict) and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(inner) or ["quant_method"]))
        config["quantization_config"] = {**inner, key: data.draw(NONSENSE)}
    message = problem(lambda: facts_of_config(config, "config.json"))
    assert message.startswith("config.json") or not message
    assert "\n" not in message


def problem(read: Callable[[], ModelFacts]) -> str:
    """What is wrong; empty when facts came out, which are then checked."""
    try:
        facts = read()
    except FactsError as error:
        return error.message
    check(facts)
    return ""


def survives(path: Path) -> None:
    message = problem(lambda: inspect_model(path))
    assert path.name in message or str(path.parent) in message or not message
    assert "\n" not in message
    assert len(message) < 2000


@pytest.mark.parametrize("seed", range(150))
def test_gguf_files_with_wrong_bytes_or_cut_anywhere(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path = write_gguf(tmp_path / "model.gguf")
    content = bytearray(path.read_bytes())
    header = 4600
    for _ in range(chance.choice((1, 1, 4))):
        at = chance.randrange(header)
        width = chance.choice((1, 4, 8))
        content[at : at + width] = chance.choice((b"\0", b"\xff", b"\x7f", chance.randbytes(1))) * width
    path.write_bytes(content[: chance.choice((len(content), chance.randrange(len(content))))])
    survives(path)


HEADERS: list[Any] = [
    {"a": {"dtype": "F32", "shape": [-1, 4], "data_offsets": [0, 16]}},
    {"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}},
    {"a": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 4]}},
    {"a": {"dtype": "F32", "shape": [float("nan")], "data_offsets": [0, 4]}},
    {"a": {"dtype": "F32", "shape": "long", "data_offsets": [0, 4]}},
    {"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}},
    {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0]}},
    {"a": {"dtype": 5, "shape": [1], "data_offsets": [0, 4]}},
    {"a": [1, 2]},
    [],
    "text",
    7,
]


@pytest.mark.parametrize("header", HEADERS)
def test_safetensors_headers_that_make_no_sense(header: Any, tmp_path: Path) -> None:
    config = {**BASE, "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    raw = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * 16)
    survives(tmp_path)


DEEP = "[" * 100_000
INDEXES = [
    "{",
    "[]",
    '{"weight_map": 5}',
    '{"weight_map": {"a": 5}}',
    '{"weight_map": {"a": "../x"}}',
    DEEP,
    '{"weight_map": {}}',
]


@pytest.mark.parametrize("index", INDEXES, ids=range(len(INDEXES)))
def test_indexes_that_make_no_sense(index: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "model_type": "llama"}))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    survives(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"null", b"[]", b'"x"', b"{", DEEP.encode(), b"1e999", b"NaN"])
def test_files_that_are_no_configuration(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    survives(path)
    with pytest.raises(FactsError, match=r"config\.json"):
        inspect_model(path)


def test_an_index_that_names_other_tensors_than_its_files_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "model_type": "llama"}))
    raw = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (tmp_path / "one.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * 16)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"b": "one.safetensors"}}))
    with pytest.raises(FactsError, match=r"index\.json: says that b is in one\.safetensors"):
        inspect_model(tmp_path)
    index.write_text(json.dumps({"weight_map": {}}))
    (tmp_path / "one.safetensors").unlink()
    survives(tmp_path)
