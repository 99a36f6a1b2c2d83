"""The engine as a whole, in this process: faults stay with the request that caused them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from forebay_server import LLM, SamplingParams
from forebay_server.engine.engine import Engine, warm_up
from forebay_server.engine.scheduler_output import SampledToken, SchedulerOutput
from forebay_server.errors import ExitCode, StartupError
from forebay_server.llm import GenerationError
from forebay_server.messages import AddRequest, RequestOutput
from tests.test_server.engine.fake_engine import FakeRunner, expected_answer, make_request, make_scheduler
from tests.test_server.models.tiny_llama import save_tiny_llama

POISON = 99
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


class BrokenRunner(FakeRunner):
    """Fails in every step that holds a request of this name."""

    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        if any(request.request_id == "bad" for request in step.requests):
            raise IndexError("index out of range")
        return super().run(step)


class LostDevice(FakeRunner):
    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        raise torch.AcceleratorError("device-side assert")


def run(engine: Engine) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def test_exception_in_a_step_ends_its_requests_and_no_others() -> None:
    engine = Engine(make_scheduler(max_num_seqs=1), BrokenRunner(40))
    engine.add(make_request("bad", [1, 2, 3]))
    engine.add(make_request("good", [4, 5], max_tokens=3))
    outputs = run(engine)
    assert outputs["bad"][-1].finish_reason == "error"
    assert "IndexError: index out of range" in (outputs["bad"][-1].error or "")
    assert [output.token_ids[0] for output in outputs["good"]] == expected_answer([4, 5], 3)
    assert engine.scheduler.pool.num_held == 0


def test_lost_device_ends_the_engine() -> None:
    engine = Engine(make_scheduler(), LostDevice(40))
    engine.add(make_request("a", [1]))
    with pytest.raises(StartupError) as caught:
        engine.step()
    assert caught.value.exit_code == ExitCode.DEVICE_LOST


@pytest.fixture
def poisoned(tmp_path: Path) -> LLM:
    """A model that computes NaN for one token, with a pool so small that its blocks are soon used by others."""
    folder = save_tiny_llama(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["lm_head.weight"][POISON] = 0  # so that nobody generates it
    weights["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(weights, folder / "model.safetensors")
    config = (folder / "config.json").read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false')
    (folder / "config.json").write_text(config)
    return LLM(str(folder), dtype="float32", kv_cache_tokens=64, max_model_len=64, debug=True)


def test_nan_fails_its_request_and_leaves_no_trace_in_the_cache(poisoned: LLM) -> None:
    prompts = [[1, 2, 3], [4] * 17]
    clean = [generation.token_ids for generation in poisoned.generate(prompts, GREEDY)]
    for length in (1, 15, 30, 60):
        poisoned.engine.scheduler.reset_prefix_cache()
        poisoned.engine.add(
            AddRequest(request_id=f"poison-{length}", prompt_token_ids=[POISON] * length, sampling=GREEDY)
        )
        (output,) = run(poisoned.engine)[f"poison-{length}"]
        assert output.finish_reason == "error"
        assert "finite" in (output.error or "")
        assert [generation.token_ids for generation in poisoned.generate(prompts, GREEDY)] == clean


def test_nan_fails_its_request_beside_others(poisoned: LLM) -> None:
    (alone,) = poisoned.generate([[1, 2, 3]], GREEDY)
    poisoned.engine.add(AddRequest(request_id="good", prompt_token_ids=[1, 2, 3], sampling=GREEDY))
    poisoned.engine.add(AddRequest(request_id="bad", prompt_token_ids=[POISON, 2], sampling=GREEDY))
    outputs = run(poisoned.engine)
    assert [output.token_ids[0] for output in outputs["good"]] == alone.token_ids
    assert outputs["bad"][-1].finish_reason == "error"


def test_model_that_computes_nonsense_is_found_by_the_warm_up(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][:] = torch.nan
    save_file(weights, folder / "model.safetensors")
    llm = LLM(str(folder), dtype="float32", kv_cache_tokens=64)
    with pytest.raises(StartupError) as caught:
        warm_up(llm.engine, llm.facts)
    assert caught.value.exit_code == ExitCode.CORRUPT_WEIGHTS


def test_warm_up_leaves_nothing_behind(tmp_path: Path) -> None:
    llm = LLM(str(save_tiny_llama(tmp_path)), dtype="float32", kv_cache_tokens=16)
    warm_up(llm.engine, llm.facts)
    assert llm.engine.scheduler.pool.num_held == 0
    assert llm.engine.scheduler.take_counters().new_generation_tokens == 0
    (generation,) = llm.generate([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]], GREEDY)
    assert generation.num_cached_tokens == 0


def test_impossible_prompt_raises_and_the_next_one_is_answered(tmp_path: Path) -> None:
    llm = LLM(str(save_tiny_llama(tmp_path)), dtype="float32", kv_cache_tokens=64)
    with pytest.raises(GenerationError, match="room for 64"):
        llm.generate([[1] * 65, [2, 3]], GREEDY)
    assert len(llm.generate([[2, 3]], GREEDY)[0].token_ids) == 6


def test_stop_token_ends_the_answer_and_is_reported(tmp_path: Path) -> None:
    llm = LLM(str(save_tiny_llama(tmp_path)), dtype="float32", kv_cache_tokens=64)
    (free,) = llm.generate([[5, 6]], GREEDY)
    stop = free.token_ids[2]
    (stopped,) = llm.generate([[5, 6]], SamplingParams(max_tokens=6, temperature=0, eos_token_ids=(stop,)))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert stopped.finish_reason == "stop"
