"""The Llama model against transformers on small random weights: every variant of the architecture and of the format."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import LlamaForCausalLM

from forebay_server import LLM, SamplingParams
from forebay_server.layers.rotary_embedding import rotary_cos_sin
from forebay_server.layers.weight_forms import dequantize
from forebay_server.llm import Generation
from forebay_server.messages import AddRequest
from forebay_server.weights.gguf_checkpoint import GgufCheckpoint
from forebay_server.weights.safetensors_checkpoint import SafetensorsCheckpoint
from tests.test_server.models.tiny_llama import save_tiny_gguf, save_tiny_llama

PROMPTS = [[5, 9, 77, 3], list(range(1, 60)), [42], [7, 7, 7, 120, 8] * 9]
NUM_NEW_TOKENS = 12
GREEDY = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0, ignore_eos=True)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def greedy(model: Path, prompts: list[list[int]] = PROMPTS, **options: Any) -> list[Generation]:
    options = {"dtype": "float32", "kv_cache_tokens": 4096} | options
    return LLM(str(model), debug=True, **options).generate(prompts, GREEDY)


def answers(generations: list[Generation]) -> list[list[int]]:
    return [generation.token_ids for generation in generations]


def reference_answers(folder: Path) -> list[list[int]]:
    """Greedy answers of transformers, without any cache."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for prompt in PROMPTS:
        known = list(prompt)
        for _ in range(NUM_NEW_TOKENS):
            with torch.inference_mode():
                known.append(int(model(torch.tensor([known])).logits[0, -1].argmax()))
        found.append(known[len(prompt) :])
    return found


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="tied head"),
        pytest.param({"tie_word_embeddings": False}, id="own head"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param({"num_key_value_heads": 4}, id="no grouped queries"),
        pytest.param({"num_key_value_heads": 1}, id="one key head"),
        pytest.param({"head_dim": 32}, id="heads wider than hidden size"),
        pytest.param({"rope_scaling": LLAMA3_ROPE}, id="llama3 rope"),
        pytest.param({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, id="linear rope"),
        pytest.param({"rope_theta": None, "rope_parameters": LLAMA3_ROPE | {"rope_theta": 5e5}}, id="rope_parameters"),
    ],
)
def test_greedy_answers_equal_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = save_tiny_llama(tmp_path, **changes)
    assert answers(greedy(folder)) == reference_answers(folder)


def test_several_safetensors_files_are_one_model(tmp_path: Path) -> None:
    one = save_tiny_llama(tmp_path / "one")
    three = save_tiny_llama(tmp_path / "three", num_files=3)
    assert answers(greedy(three)) == answers(greedy(one))


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"attention_bias": True}])
def test_gguf_equals_safetensors(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = save_tiny_llama(tmp_path / "folder", **changes)
    file = save_tiny_gguf(tmp_path / "model.gguf", **changes)
    assert answers(greedy(file)) == answers(greedy(folder))


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_gguf_formats_are_close_to_the_weights_they_stand_for(tmp_path: Path, name: str) -> None:
    exact = dict(weight[:2] for weight in GgufCheckpoint(save_tiny_gguf(tmp_path / "exact.gguf")).tensors())
    kind = gguf.GGMLQuantizationType[name]
    stored = GgufCheckpoint(save_tiny_gguf(tmp_path / "stored.gguf", quantization=kind))
    tolerance = {"Q4_0": 0.12, "Q4_1": 0.12, "Q5_0": 0.06}.get(name, 0.01)
    for key, weight, _ in stored.tensors():
        assert (dequantize(weight) - dequantize(exact[key])).abs().max() <= tolerance


def test_rope_factors_of_a_gguf_file_stretch_the_frequencies(tmp_path: Path) -> None:
    plain = SafetensorsCheckpoint(save_tiny_llama(tmp_path / "plain")).config
    linear = SafetensorsCheckpoint(
        save_tiny_llama(tmp_path / "linear", rope_scaling={"rope_type": "linear", "factor": 4.0})
    ).config
    factors = replace(plain, rope_frequency_factors=(4.0,) * (plain.head_dim // 2))
    assert torch.equal(rotary_cos_sin(factors, 100), rotary_cos_sin(linear, 100))
    assert not torch.equal(rotary_cos_sin(factors, 100), rotary_cos_sin(plain, 100))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def alone(tiny: Path) -> list[list[int]]:
    """The answers when every prompt has the engine to itself."""
    return [answers(greedy(tiny, [prompt]))[0] for prompt in PROMPTS]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="in one batch"),
        pytest.param({"max_num_batched_tokens": 8}, id="in small chunks"),
        pytest.param({"max_num_batched_tokens": 1}, id="token by token"),
        pytest.param({"max_num_seqs": 2}, id="two at a time"),
        pytest.param({"block_size": 4}, id="small blocks"),
        pytest.param({"block_size": 64}, id="large blocks"),
        pytest.param({"kv_cache_tokens": 80, "max_model_len": 80}, id="preempted"),
    ],
)
def test_answers_do_not_depend_on_how_they_are_scheduled(
    tiny: Path, alone: list[list[int]], options: dict[str, Any]
) -> None:
    assert answers(greedy(tiny, **options)) == alone


def test_answers_are_the_same_from_a_hot_prefix_cache(tiny: Path, alone: list[list[int]]) -> None:
    llm = LLM(str(tiny), dtype="float32", kv_cache_tokens=4096, debug=True)
    prompts = [*PROMPTS, [*PROMPTS[1][:40], 99]]
    cold, hot = llm.generate(prompts, GREEDY), llm.generate(prompts, GREEDY)
    assert answers(cold)[:4] == alone
    assert answers(hot) == answers(cold)
    assert [generation.num_cached_tokens for generation in hot] == [0, 48, 0, 32, 32]


def test_preemption_really_happens_in_a_small_pool(tiny: Path, alone: list[list[int]]) -> None:
    llm = LLM(str(tiny), dtype="float32", kv_cache_tokens=80, max_model_len=80, debug=True)
    assert answers(llm.generate(PROMPTS, GREEDY)) == alone
    assert llm.engine.scheduler.take_counters().new_preemptions > 0


def test_blocks_of_aborted_requests_are_reused_without_a_trace(tiny: Path, alone: list[list[int]]) -> None:
    llm = LLM(str(tiny), dtype="float32", kv_cache_tokens=96, max_model_len=80, debug=True)
    for round_number in range(6):
        for index, prompt in enumerate(PROMPTS):
            llm.engine.add(
                AddRequest(
                    request_id=f"aborted-{round_number}-{index}",
                    prompt_token_ids=[*prompt[::-1], round_number],
                    sampling=GREEDY,
                )
            )
        for _ in range(round_number):
            llm.engine.step()
        llm.engine.abort([f"aborted-{round_number}-{index}" for index in range(len(PROMPTS))])
        llm.engine.step()
        assert answers(llm.generate(PROMPTS, GREEDY)) == alone
