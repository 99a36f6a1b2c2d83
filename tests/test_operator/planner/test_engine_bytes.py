"""The planner's bytes equal what the engine allocates, within 1 %."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from forebay_operator.facts.inspect_model import inspect_model
from forebay_operator.planner import KVBudget
from forebay_server.config import EngineConfig
from forebay_server.engine.kv_cache import allocate_kv_cache, plan_kv_cache
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model, weight_bytes
from tests.smollm2 import smollm2_gguf
from tests.test_operator.planner.questions import planned, question

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
GIB = 1 << 30


@pytest.mark.model
@pytest.mark.parametrize("weights", ["bf16", "float32"])
def test_gguf_weights_and_cache(weights: str) -> None:
    check(smollm2_gguf(), weights)


@pytest.mark.parametrize("weights", ["bf16", "float32"])
@pytest.mark.parametrize("tied", [True, False])
def test_safetensors_weights_and_cache(weights: str, tied: bool, tmp_path: Path) -> None:
    check(tiny_checkpoint(tmp_path, tied=tied), weights)


def check(path: Path, weights: str) -> None:
    facts = inspect_model(path)
    budget = KVBudget("tokens", 5000)
    plan = planned(question(facts, "cpu", weights=weights, kv_budget=budget, memory_bytes=8 * GIB, max_model_len=256))
    checkpoint = open_checkpoint(path)
    dtype = DTYPES[plan.dtype]
    model = load_model(checkpoint, dtype, torch.device("cpu"), 8 * GIB)
    assert plan.weight_bytes_per_gpu == pytest.approx(weight_bytes(model), rel=0.01)
    config = EngineConfig(
        model=str(path),
        kv_cache_tokens=plan.kv_cache_tokens,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        block_size=plan.block_size,
    )
    layout = plan_kv_cache(config, checkpoint.config, plan.max_model_len, dtype, 8 * GIB)
    cache = allocate_kv_cache(layout, checkpoint.config, torch.device("cpu"))
    assert layout.num_blocks == plan.num_blocks
    assert plan.memory.kv_cache == pytest.approx(cache.numel() * cache.element_size(), rel=0.01)


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
