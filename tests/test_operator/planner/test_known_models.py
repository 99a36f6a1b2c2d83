"""Published parameter counts and KV bytes per token of well-known models; the model cards are the source."""

import pytest

from forebay_operator.catalogue.models import known_model, known_model_names
from forebay_operator.planner.kv_cache import kv_bytes_per_token
from tests.test_operator.planner.questions import facts_of

PUBLISHED = [
    # model, parameters, KV bytes per token in 16 bits (all layers, windows not considered)
    ("meta-llama/Llama-2-7b-hf", 6_738_415_616, 524_288),
    ("meta-llama/Llama-2-13b-hf", 13_015_864_320, 819_200),
    ("meta-llama/Llama-2-70b-hf", 68_976_648_192, 327_680),
    ("meta-llama/Meta-Llama-3-8B-Instruct", 8_030_261_248, 131_072),
    ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496, 327_680),
    ("meta-llama/Llama-3.1-405B-Instruct", 405_853_388_800, 516_096),
    ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400, 32_768),
    ("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824, 114_688),
    ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1_100_048_384, 22_528),
    ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008, 23_040),
    ("HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120, 40_960),
    ("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384, 196_608),
    ("mistralai/Mistral-7B-v0.1", 7_241_732_096, 131_072),
    ("mistralai/Mistral-7B-Instruct-v0.3", 7_248_023_552, 131_072),
    ("mistralai/Mistral-Nemo-Instruct-2407", 12_247_782_400, 163_840),
    ("mistralai/Mistral-Small-24B-Instruct-2501", 23_572_403_200, 163_840),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46_702_792_704, 131_072),
    ("mistralai/Mixtral-8x22B-v0.1", 140_620_634_112, 229_376),
    ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768, 12_288),
    ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, 57_344),
    ("Qwen/Qwen2.5-32B-Instruct", 32_763_876_352, 262_144),
    ("Qwen/Qwen2.5-72B-Instruct", 72_706_203_648, 327_680),
    ("Qwen/Qwen3-0.6B", 596_049_920, 114_688),
    ("Qwen/Qwen3-8B", 8_190_735_360, 147_456),
    ("Qwen/Qwen3-32B", 32_762_123_264, 262_144),
    ("Qwen/Qwen3-30B-A3B", 30_532_122_624, 98_304),
    ("Qwen/Qwen3-235B-A22B", 235_093_634_560, 192_512),
    ("google/gemma-2-2b-it", 2_614_341_888, 106_496),
    ("google/gemma-2-9b-it", 9_241_705_984, 344_064),
    ("google/gemma-2-27b-it", 27_227_128_320, 376_832),
    ("google/gemma-3-1b-it", 999_885_952, 26_624),
    ("microsoft/Phi-3-mini-4k-instruct", 3_821_079_552, 393_216),
    ("microsoft/phi-4", 14_659_507_200, 204_800),
    ("deepseek-ai/DeepSeek-V2-Lite-Chat", 15_706_484_224, 31_104),
    ("deepseek-ai/DeepSeek-V2", 235_741_434_880, 69_120),
    ("deepseek-ai/DeepSeek-V3", 671_026_419_200, 70_272),
    ("openai/gpt-oss-20b", 20_914_757_184, 49_152),
    ("openai/gpt-oss-120b", 116_829_156_672, 73_728),
]


@pytest.mark.parametrize(("name", "parameters", "kv_bytes"), PUBLISHED)
def test_parameters_and_kv_bytes_are_those_published(name: str, parameters: int, kv_bytes: int) -> None:
    facts = facts_of(name)
    assert facts.num_parameters == parameters
    assert kv_bytes_per_token(facts, "bf16") == kv_bytes


@pytest.mark.parametrize(
    ("name", "billions"),
    [  # as the model cards say it, embedding included where they include it
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 12.9),
        ("Qwen/Qwen3-30B-A3B", 3.3),
        ("Qwen/Qwen3-235B-A22B", 22.2),
        ("deepseek-ai/DeepSeek-V3", 37.6),
        ("openai/gpt-oss-20b", 3.6),
        ("openai/gpt-oss-120b", 5.1),
    ],
)
def test_active_parameters_of_experts_are_those_published(name: str, billions: float) -> None:
    facts = facts_of(name)
    looked_up = 0 if name.startswith("openai") else facts.vocab_size * facts.hidden_size
    assert (facts.num_active_parameters + looked_up) / 1e9 == pytest.approx(billions, abs=0.06)


@pytest.mark.parametrize("name", known_model_names())
def test_facts_of_every_known_model_fit_a_termination_message(name: str) -> None:
    assert len(facts_of(name).to_json()) <= 4096


def test_names_are_found_with_scheme_and_in_any_case() -> None:
    assert known_model("hf://qwen/QWEN3-0.6b") == known_model("Qwen/Qwen3-0.6B")
    assert known_model("hf://qwen/QWEN3-0.6b") is not None
    assert known_model("nobody/nothing") is None
