"""The KV cache in int8: what is written is what is read, scales go with blocks, and answers do not depend on hits."""

from pathlib import Path

import pytest
import torch

from forebay_server import LLM, SamplingParams
from forebay_server.engine.kv_cache import allocate_kv_cache
from forebay_server.layers.kv_cache import KVCache, Pages
from tests.test_server.models.tiny_llama import save_tiny_llama

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
PROMPT = [(7 * index) % 120 + 3 for index in range(50)]


def pages() -> Pages:
    return Pages(torch.zeros(4, 8, 2, 16, dtype=torch.int8), torch.zeros(4, 8, 2))


def test_rows_are_read_as_they_were_said_to_be_written() -> None:
    rows = torch.randn(5, 2, 16) * torch.tensor([0.01, 100.0]).view(1, 2, 1)  # heads of very different size
    cache = pages()
    written = cache.write(torch.tensor([8, 9, 10, 24, 25]), rows)
    read = cache.gather(torch.tensor([[1, 3]]), torch.float32)[0].transpose(0, 1)  # [2 * 8, 2, 16]
    assert torch.equal(read[[0, 1, 2, 8, 9]], written)
    largest = rows.abs().amax(-1, keepdim=True)
    assert ((written - rows).abs() <= largest / 127 / 2 * 1.001).all()
    assert not read[[3, 4, 15]].any()


def test_cleared_blocks_hold_nothing_of_their_last_owner() -> None:
    cache = KVCache(torch.ones(2, 2, 4, 8, 2, 16, dtype=torch.int8), torch.full((2, 2, 4, 8, 2), torch.nan))
    cache.clear(torch.tensor([1, 2]))
    keys, values = cache.layer(1)
    for part in (keys, values):
        assert not part.gather(torch.tensor([[1, 2]]), torch.float32).any()
        assert part.scales is not None
        assert part.scales[3].isnan().all()


def test_a_token_takes_the_bytes_that_are_planned(tmp_path: Path) -> None:
    llm = LLM(str(save_tiny_llama(tmp_path)), kv_cache_dtype="int8", kv_cache_tokens=128)
    config, layout = llm.facts.model_config, llm.facts.layout
    scales = 4 * 2 * config.num_layers * config.num_kv_heads
    assert layout.bytes_per_token == 2 * config.num_layers * config.num_kv_heads * config.head_dim + scales
    cache = allocate_kv_cache(layout, config, torch.device("cpu"))
    assert cache.num_bytes == layout.num_bytes == 128 * layout.bytes_per_token


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_repeated_prompt_is_answered_as_the_first_time(tmp_path: Path, dtype: str) -> None:
    llm = LLM(str(save_tiny_llama(tmp_path)), dtype=dtype, kv_cache_dtype="int8", kv_cache_tokens=512, debug=True)
    cold, hot = (llm.generate([PROMPT], GREEDY)[0] for _ in range(2))
    assert (cold.num_cached_tokens, hot.num_cached_tokens) == (0, 48)
    assert hot.token_ids == cold.token_ids


def test_chunks_do_not_change_the_answer(tmp_path: Path) -> None:
    model = str(save_tiny_llama(tmp_path))
    answers = [
        LLM(model, dtype="float32", kv_cache_dtype="int8", kv_cache_tokens=512, max_num_batched_tokens=size)
        .generate([PROMPT], GREEDY)[0]
        .token_ids
        for size in (512, 16, 7)
    ]
    assert answers[0] == answers[1] == answers[2]


def test_eight_bits_change_little(tmp_path: Path) -> None:
    model = str(save_tiny_llama(tmp_path))
    sampling = SamplingParams(max_tokens=1, temperature=0, logprobs=5, ignore_eos=True)
    exact, rounded = (
        LLM(model, dtype="float32", kv_cache_dtype=kind, kv_cache_tokens=512).generate([PROMPT], sampling)[0].logprobs
        for kind in ("auto", "int8")
    )
    assert exact is not None
    assert rounded is not None
    assert rounded[0].chosen == pytest.approx(exact[0].chosen, abs=0.05)
    assert rounded[0].chosen != exact[0].chosen
