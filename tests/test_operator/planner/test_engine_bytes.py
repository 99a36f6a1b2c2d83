"""The planner's bytes equal what the engine allocates, within 1 %, in every format that it serves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import save_file

from forebay_operator.facts.inspect_model import inspect_model
from forebay_operator.planner import KVBudget, Plan
from forebay_server.config import EngineConfig
from forebay_server.engine.device import quantization_options
from forebay_server.engine.kv_cache import allocate_kv_cache, plan_kv_cache
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model, weight_bytes
from tests.smollm2 import smollm2_gguf
from tests.test_operator.planner.questions import planned, question
from tests.test_server.models.tiny_llama import save_tiny_gguf
from tests.test_server.weights import writers
from tests.test_server.weights.writers import Scheme, save_quantized_llama

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "int8": torch.int8}
CPU = torch.device("cpu")
GIB = 1 << 30

CHECKPOINTS: dict[str, tuple[Scheme, str]] = {
    # how it is stored, and what the plan calls it
    "gptq": (writers.gptq(), "gptq"),
    "gptq-act-order": (writers.gptq(group_size=64, desc_act=True), "gptq"),
    "gptq-asymmetric": (writers.gptq(group_size=128, sym=False), "gptq"),
    "gptq-whole-rows": (writers.gptq(group_size=-1), "gptq"),
    "gptq-8-bits": (writers.gptq(bits=8), "gptq"),
    "awq": (writers.awq(), "awq"),
    "awq-128": (writers.awq(group_size=128), "awq"),
    "int8": (writers.compressed_int8(), "int8"),
    "packed": (writers.compressed_packed(), "int4"),
    "packed-asymmetric": (writers.compressed_packed(group_size=128, symmetric=False), "int4"),
    "packed-8-bits": (writers.compressed_packed(bits=8, group_size=64), "int8"),
    "float8": (writers.compressed_fp8(), "fp8"),
    "float8-block": (writers.compressed_fp8(strategy="block"), "fp8-block"),
    "fp8-block": (writers.block_fp8(), "fp8-block"),
}


@pytest.mark.model
@pytest.mark.parametrize("weights", ["bf16", "float32", "int8", "int4"])
def test_a_real_gguf_on_a_cpu(weights: str) -> None:
    check(smollm2_gguf(), "cpu", weights=weights, memory_bytes=8 * GIB)


@pytest.mark.model
def test_a_real_gguf_that_is_kept_as_it_is() -> None:
    plan = check(smollm2_gguf(), "l4-24gb")
    assert (plan.weights, plan.quantization) == ("Q4_1", "auto")


@pytest.mark.parametrize("weights", ["bf16", "float32", "int8", "int4"])
@pytest.mark.parametrize("tied", [True, False])
def test_safetensors_on_a_cpu(weights: str, tied: bool, tmp_path: Path) -> None:
    plan = check(tiny_checkpoint(tmp_path, tied=tied), "cpu", weights=weights, memory_bytes=8 * GIB)
    assert plan.quantization == ("none" if weights in ("bf16", "float32") else weights)


@pytest.mark.parametrize("tied", [True, False])
def test_safetensors_in_fp8(tied: bool, tmp_path: Path) -> None:
    assert check(tiny_checkpoint(tmp_path, tied=tied), "h100-80gb", weights="fp8").quantization == "fp8"


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_quantized_checkpoints_are_kept(name: str, tmp_path: Path) -> None:
    scheme, called = CHECKPOINTS[name]
    save_quantized_llama(tmp_path, scheme)
    plan = check(tmp_path, "h100-80gb")
    assert (plan.weights, plan.quantization) == (called, "auto")


@pytest.mark.parametrize("name", ["gptq-act-order", "awq", "packed", "int8", "float8", "fp8-block"])
@pytest.mark.parametrize("weights", ["auto", "bf16", "int8"])
def test_a_cpu_keeps_or_converts_quantized_checkpoints(name: str, weights: str, tmp_path: Path) -> None:
    save_quantized_llama(tmp_path, CHECKPOINTS[name][0])
    plan = check(tmp_path, "cpu", weights=weights, memory_bytes=8 * GIB)
    if weights == "auto":
        assert plan.quantization == ("none" if "8" in name and name != "int8" else "auto")


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q5_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("weights", ["auto", "int8", "int4"])
def test_gguf_types(kind: str, weights: str, tmp_path: Path) -> None:
    path = save_tiny_gguf(tmp_path / "tiny.gguf", quantization=GGMLQuantizationType[kind])
    plan = check(path, "cpu", weights=weights, memory_bytes=8 * GIB)
    assert plan.weights == weights if weights != "auto" else ("bf16" if kind == "F16" else kind)
    if weights == "auto":
        assert check(path, "l4-24gb").weights == plan.weights


@pytest.mark.parametrize("kv", ["auto", "float32", "int8"])
def test_caches(kv: str, tmp_path: Path) -> None:
    check(tiny_checkpoint(tmp_path, tied=True), "cpu", kv_cache_dtype=kv, memory_bytes=8 * GIB)


def check(path: Path, accelerator: str, **wishes: Any) -> Plan:
    """Plan a model, load it as the plan says, and compare."""
    budget = KVBudget("tokens", 5000)
    facts = inspect_model(path)
    plan = planned(question(facts, accelerator, kv_budget=budget, max_model_len=256, **wishes))
    checkpoint = open_checkpoint(path)
    dtype = DTYPES[plan.dtype]
    device = torch.device("cpu" if accelerator == "cpu" else "cuda")  # the weights themselves lie in host memory
    asked = EngineConfig(model=str(path), dtype=plan.dtype, quantization=plan.quantization)
    options = quantization_options(asked, device, is_compiled=True)
    model = load_model(checkpoint, dtype, CPU, 8 * GIB, options=options).model
    assert plan.weight_bytes_per_gpu == pytest.approx(weight_bytes(model), rel=0.01)
    config = EngineConfig(
        model=str(path),
        kv_cache_tokens=plan.kv_cache_tokens,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=min(plan.max_num_batched_tokens, 512),
        block_size=plan.block_size,
    )
    kv_dtype = DTYPES[plan.engine_kv_cache_dtype]
    layout = plan_kv_cache(config, checkpoint.config, plan.max_model_len, kv_dtype, 8 * GIB)
    cache = allocate_kv_cache(layout, checkpoint.config, CPU)
    parts = [part for part in (cache.numbers, cache.scales) if part is not None]
    allocated = sum(part.numel() * part.element_size() for part in parts)
    assert layout.num_blocks == plan.num_blocks
    assert plan.memory.kv_cache == pytest.approx(allocated, rel=0.01)
    return plan


def tiny_checkpoint(folder: Path, *, tied: bool) -> Path:
    """A Llama of two layers in safetensors, with random weights."""
    hidden, intermediate, vocab, heads, kv_heads, head_dim = 64, 160, 300, 4, 2, 16
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        shapes["lm_head.weight"] = (vocab, hidden)
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.q_proj.weight": (heads * head_dim, hidden),
            f"{prefix}.self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, heads * head_dim),
            f"{prefix}.mlp.gate_proj.weight": (intermediate, hidden),
            f"{prefix}.mlp.up_proj.weight": (intermediate, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, intermediate),
        }
    save_file(
        {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}, folder / "model.safetensors"
    )
    return folder
