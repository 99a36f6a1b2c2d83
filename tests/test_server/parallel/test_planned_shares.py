"""The planner's arithmetic and the engine agree about the fullest rank: bytes of its weights and of a token's cache."""

import json
from pathlib import Path

import pytest
import torch

from forebay_operator.facts.inspect_model import facts_of_config
from forebay_operator.planner.formats import load_time_scheme
from forebay_operator.planner.kv_cache import kv_cache_shape
from forebay_operator.planner.weights import weight_bytes_per_rank
from forebay_server.config import EngineConfig
from forebay_server.engine.kv_cache import plan_kv_cache
from forebay_server.parallel.group import OneRank
from forebay_server.parallel.stages import place_of
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model, weight_bytes
from tests.test_server.models.tiny_models import save_tiny


class Rank(OneRank):
    """A rank that only loads: it never meets the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 2), (2, 1), (2, 2), (1, 3), (4, 1)])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mixtral", "phi3", "mistral3 with images"])
def test_the_fullest_rank_is_as_planned(tmp_path: Path, name: str, tensor: int, pipeline: int) -> None:
    """Tied and untied heads, biases, experts, packed projections; 4 layers are not even in 3 stages."""
    folder, _ = save_tiny(tmp_path, name)
    checkpoint = open_checkpoint(folder)
    weights, cache = [], []
    for rank in range(tensor * pipeline):
        stage, tensor_rank = place_of(rank, tensor, pipeline)
        group = Rank(tensor_rank, tensor)
        model = load_model(checkpoint, torch.bfloat16, torch.device("cpu"), 1 << 30, group=group, stage=stage).model
        config = EngineConfig(model=str(folder), kv_cache_tokens=64)
        cache.append(plan_kv_cache(config, model.cache_config, 64, torch.bfloat16, 1 << 40).bytes_per_token)
        weights.append(weight_bytes(model))
    facts = facts_of_config(json.loads((folder / "config.json").read_text()), "config.json")
    planned = weight_bytes_per_rank(facts, load_time_scheme("bf16"), 2, tensor, pipeline)
    assert abs(max(weights) - planned) <= planned * 0.01
    shape = kv_cache_shape(
        facts,
        "bf16",
        tensor=tensor,
        pipeline=pipeline,
        max_model_len=64,
        max_num_batched_tokens=64,
        block_size=16,
    )
    assert max(cache) == shape.full_bytes_per_token + shape.sliding_bytes_per_token
