"""What a request gets does not depend on its company, on the prefix cache, on chunks or on preemption: to the last bit.

D-1 (huggingface/transformers #25921, vllm #42960, #48613) and D-2. In float32 on the CPU, where every product has one
shape (`layers/invariant.py`); log-probabilities are compared as numbers, not roughly.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear as torch_linear

from forebay_server import LLM, SamplingParams
from forebay_server.layers.invariant import ROWS, linear
from forebay_server.llm import Generation
from tests.smollm2 import smollm2_gguf
from tests.test_server.models.tiny_llama import save_tiny_llama

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=1)
SEEDED = SamplingParams(max_tokens=12, temperature=1, seed=5, ignore_eos=True, logprobs=1)


def prompts_of(number: int, *, longest: int = 90, vocab_size: int = 128) -> list[list[int]]:
    source = random.Random(3)
    return [[source.randrange(vocab_size) for _ in range(source.randint(1, longest))] for _ in range(number)]


def answers(generations: Sequence[Generation]) -> list[tuple[list[int], list[float]]]:
    """Tokens and the exact log-probability of each."""
    return [(generation.token_ids, [entry.chosen for entry in generation.logprobs or []]) for generation in generations]


def cold_and_alone(llm: LLM, prompts: list[list[int]], sampling: SamplingParams) -> list[tuple[list[int], list[float]]]:
    found = []
    for prompt in prompts:
        llm.engine.scheduler.reset_prefix_cache()
        found += answers(llm.generate([prompt], sampling))
    llm.engine.scheduler.reset_prefix_cache()
    return found


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are faster without company, on a busy machine by far."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), dtype="float32", kv_cache_tokens=4096, debug=True)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_d1_a_batch_of_16_answers_as_each_alone(llm: LLM, sampling: SamplingParams) -> None:
    prompts = prompts_of(16)
    alone = cold_and_alone(llm, prompts, sampling)
    assert answers(llm.generate(prompts, sampling)) == alone


def test_d2_a_hot_cache_answers_as_a_cold_one(llm: LLM) -> None:
    prompts = [prompt + prompt for prompt in prompts_of(5)]
    cold = cold_and_alone(llm, prompts, GREEDY)
    llm.generate(prompts, GREEDY)
    hot = llm.generate(prompts, GREEDY)
    assert sum(generation.num_cached_tokens for generation in hot) > 0
    assert answers(hot) == cold


@pytest.mark.parametrize("chunk", [1, 7, 32, 64])
def test_d2_a_prompt_in_chunks_answers_as_in_one_piece(llm: LLM, folder: Path, chunk: int) -> None:
    prompts = prompts_of(4, longest=150)
    whole = cold_and_alone(llm, prompts, GREEDY)
    chunked = LLM(str(folder), dtype="float32", kv_cache_tokens=1024, max_num_batched_tokens=chunk, debug=True)
    assert answers(chunked.generate(prompts, GREEDY)) == whole


@pytest.mark.parametrize("shared", [False, True], ids=["own prompts", "shared prefix"])
def test_p3_p10_preempted_requests_answer_as_if_alone(llm: LLM, folder: Path, shared: bool) -> None:
    """vllm #16832; nano-vllm PR #211, #233: recomputed, and resumed on a prefix that is cached."""
    prompts = [([7] * 40 if shared else []) + prompt for prompt in prompts_of(6, longest=30)]
    sampling = SamplingParams(max_tokens=45, temperature=0, ignore_eos=True, logprobs=1)
    alone = cold_and_alone(llm, prompts, sampling)
    small = LLM(str(folder), dtype="float32", kv_cache_tokens=16 * 16, debug=True)
    found = small.generate(prompts, sampling)
    assert small.engine.scheduler.take_counters().new_preemptions > 0
    assert answers(found) == alone


@pytest.mark.parametrize("batch", [1, 8])
def test_p17_the_cpu_backend_batches_and_caches(llm: LLM, batch: int) -> None:
    """vllm #17954, #27034: prefix caching and batches on CPUs."""
    prompts = [[5] * 40 + prompt for prompt in prompts_of(8, longest=20)]
    alone = cold_and_alone(llm, prompts, GREEDY)
    for first in range(0, 8, batch):
        assert answers(llm.generate(prompts[first : first + batch], GREEDY)) == alone[first : first + batch]


@pytest.mark.model
def test_d1_d2_the_real_model_answers_the_same_whatever_the_step_holds() -> None:
    """Alone and cold, then in a batch, then hot: bit for bit, with the weights of SmolLM2 and two threads."""
    torch.set_num_threads(2)
    llm = LLM(str(smollm2_gguf()), dtype="float32", kv_cache_tokens=2048, max_model_len=512)
    texts = ["The capital of France is", "Once upon a time there was", "1, 2, 3, 4,", "The quick brown fox " * 6]
    prompts = [llm.tokenizer.encode(text) for text in texts]
    sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=1)
    alone = cold_and_alone(llm, prompts, sampling)
    assert answers(llm.generate(prompts, sampling)) == alone
    assert answers(llm.generate(prompts, sampling)) == alone


@pytest.mark.parametrize("sizes", [(64, 96), (96, 64), (576, 960), (1536, 576)], ids=str)
def test_each_row_of_a_product_is_its_own(sizes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    rows, weight = torch.randn(150, sizes[0]), torch.randn(sizes[1], sizes[0])
    whole = linear(rows, weight)
    assert torch.allclose(whole, torch_linear(rows, weight), atol=1e-3)
    for num_rows in (1, 2, ROWS - 1, ROWS, ROWS + 1, 100):
        for first in (0, 3, 40):
            assert torch.equal(linear(rows[first : first + num_rows], weight), whole[first : first + num_rows])
    assert linear(rows[:0], weight).shape == (0, sizes[1])
