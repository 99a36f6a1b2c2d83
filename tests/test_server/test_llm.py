"""The Python API, with a tiny model of random weights: generate, chat and embed."""

import math
from pathlib import Path

import pytest

from forebay_server import LLM, SamplingParams
from forebay_server.errors import InvalidRequestError
from forebay_server.llm import GenerationError
from tests.fakes.tiny_model import END_TOKEN_ID, VOCAB_SIZE, write_tiny_model
from tests.test_server.models.tiny_llama import save_tiny_llama

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    save_tiny_llama(folder, vocab_size=VOCAB_SIZE, eos_token_id=END_TOKEN_ID)
    return LLM(str(folder), dtype="float32", kv_cache_tokens=512, max_model_len=256, debug=True)


def test_chat_is_generate_on_the_rendered_prompt(llm: LLM) -> None:
    several = llm.chat([HELLO, [*HELLO, {"role": "assistant", "content": "x"}]], GREEDY)
    (rendered,) = llm.generate(["<|start|>user: hello<|end|><|start|>"], GREEDY)
    assert several[0].prompt_token_ids == rendered.prompt_token_ids
    assert several[0].token_ids == rendered.token_ids
    assert several[0].text == rendered.text
    assert several[1].prompt_token_ids != rendered.prompt_token_ids
    (alone,) = llm.chat(HELLO, GREEDY)
    assert alone.token_ids == rendered.token_ids
    (without,) = llm.chat(HELLO, GREEDY, add_generation_prompt=False)
    assert without.prompt_token_ids == rendered.prompt_token_ids[:-1]


def test_chat_refuses_what_the_template_refuses(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="knows no tools"):
        llm.chat([{"role": "tool", "content": "x"}])
    folder = write_tiny_model(tmp_path, template=None)
    save_tiny_llama(folder, vocab_size=VOCAB_SIZE, eos_token_id=END_TOKEN_ID)
    with pytest.raises(GenerationError, match="no chat template"):
        LLM(str(folder), dtype="float32", kv_cache_tokens=64, max_model_len=64).chat(HELLO)


def test_embeddings_are_unit_vectors_in_the_order_of_the_prompts(llm: LLM) -> None:
    vectors = llm.embed(["abc", "something longer", [1, 2, 3]])
    assert [math.hypot(*vector) for vector in vectors] == pytest.approx([1, 1, 1])
    assert llm.embed(["something longer"])[0] == pytest.approx(vectors[1], abs=1e-5)
    assert llm.embed(["abc"], pooling="mean")[0] != pytest.approx(vectors[0], abs=1e-2)
    assert llm.embed([]) == []


def test_a_prompt_that_cannot_be_served_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(GenerationError, match="257 tokens"):
        llm.embed(["fine", "x" * 257])
    assert not llm.engine.has_work
    with pytest.raises(GenerationError, match="300 tokens"):
        llm.generate(["fine", "x" * 300], GREEDY)
    assert not llm.engine.has_work
    assert llm.engine.scheduler.pool.num_held == 0
    assert len(llm.generate(["fine"], GREEDY)[0].token_ids) == 6
