"""Constrained requests in a real engine with a tiny random model: compiled aside, preempted, aborted, failed alone."""

import itertools
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from forebay_server.engine.grammar_compiler import MAX_CACHED_GRAMMARS, GrammarCompiler, GrammarError
from forebay_server.engine.grammars import MIN_PARALLEL_MASKS, TOO_COSTLY, TOO_SLOW, Grammars
from forebay_server.llm import LLM
from forebay_server.messages import AddRequest, RequestOutput
from forebay_server.sampling_params import SamplingParams
from forebay_server.structured.constraints import Constraint
from forebay_server.structured.grammar import Grammar, Thinking
from tests.fakes.tiny_model import END_TOKEN_ID, VOCAB_SIZE, write_tiny_model
from tests.test_server.models.tiny_llama import save_tiny_llama

WORD = Grammar(text=Constraint("regex", "([a-z][0-9]){24}", "x").rules())
PATTERN = re.compile("([a-z][0-9]){24}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("grammars"))
    return save_tiny_llama(folder, vocab_size=VOCAB_SIZE, eos_token_id=END_TOKEN_ID)


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(str(model), device="cpu", dtype="float32", debug=True)


def request(name: str, grammar: Grammar | None, **sampling: Any) -> AddRequest:
    params = SamplingParams(max_tokens=200, temperature=1.0, seed=5, eos_token_ids=(END_TOKEN_ID,))
    fields = {field: getattr(params, field) for field in params.__struct_fields__} | sampling
    prompt = [10 + index % 50 for index in range(20 + len(name))]
    return AddRequest(
        request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(**fields), grammar=grammar, cache_salt=name
    )


def run(llm: LLM, *requests: AddRequest) -> dict[str, RequestOutput]:
    """The last output of each request, with all of its tokens."""
    for message in requests:
        llm.engine.add(message)
    tokens: dict[str, list[int]] = {message.request_id: [] for message in requests}
    last: dict[str, RequestOutput] = {}
    while llm.engine.has_work:
        for output in llm.engine.step():
            tokens[output.request_id] += output.token_ids
            last[output.request_id] = output
    for name, output in last.items():
        output.token_ids[:] = tokens[name]
    return last


def text_of(llm: LLM, output: RequestOutput) -> str:
    assert output.finish_reason == "stop", output
    return llm.tokenizer.decode(output.token_ids)


def test_preemption_changes_nothing(llm: LLM, model: Path) -> None:
    names = [f"request {number}" for number in range(4)]
    alone = {name: text_of(llm, run(llm, request(name, WORD))[name]) for name in names}
    small = LLM(str(model), device="cpu", dtype="float32", debug=True, kv_cache_tokens=160)
    small.engine.scheduler.take_counters()
    together = run(small, *(request(name, WORD) for name in names))
    assert small.engine.scheduler.take_counters().new_preemptions > 0
    assert {name: text_of(small, output) for name, output in together.items()} == alone
    assert all(map(PATTERN.fullmatch, alone.values()))


def test_a_grammar_that_is_over_ends_the_request_whatever_else_was_asked(llm: LLM) -> None:
    yes = Grammar(text=Constraint("choice", ["yes", "no"], "x").rules())
    outputs = run(llm, request("eos", yes, ignore_eos=True), request("min", yes, min_tokens=50))
    assert {text_of(llm, output) for output in outputs.values()} <= {"yes", "no"}
    assert all(output.stop_token_id is None for output in outputs.values())


def test_reasoning_comes_before_the_answer(llm: LLM) -> None:
    text = Constraint("regex", "[0-9]{4}", "x").rules()
    opened = Grammar(text=text, thinking=Thinking(start="<<", end=".", is_open=True))
    (output,) = run(llm, request("open", opened, max_tokens=450)).values()
    if output.finish_reason == "stop":
        thought, _, answer = text_of(llm, output).rpartition(".")
        assert len(answer.strip()) == 4
        assert answer.strip().isdecimal()
        assert "." not in thought
    possible = Grammar(text=text, thinking=Thinking(start="<<", end=".", is_open=False))
    (output,) = run(llm, request("possible", possible, temperature=0, logit_bias={ord("<") - 33: -100})).values()
    assert text_of(llm, output).isdecimal()


def test_a_wrong_grammar_fails_its_request_alone(llm: LLM) -> None:
    outputs = run(llm, request("bad", Grammar(text="start: /(/")), request("good", WORD))
    assert outputs["bad"].finish_reason == "error"
    assert (outputs["bad"].error or "").startswith("the grammar could not be compiled")
    assert PATTERN.fullmatch(text_of(llm, outputs["good"]))


def test_aborted_requests_leave_nothing_behind(llm: LLM) -> None:
    llm.engine.add(request("left while compiling", Grammar(text='start: "abc" "d"+')))
    llm.engine.abort(["left while compiling"])
    llm.engine.add(request("left while running", WORD))
    for _ in range(200):
        if llm.engine.scheduler.num_running:
            break
        llm.engine.step()
    llm.engine.abort(["left while running"])
    while llm.engine.has_work:
        llm.engine.step()
    assert llm.engine.scheduler.num_waiting == 0
    assert llm.engine.scheduler.pool.num_held == 0
    assert text_of(llm, run(llm, request("left while running", WORD))["left while running"])


class SlowCompiler(GrammarCompiler):
    """Compiles when it is told to."""

    def __init__(self, model: str) -> None:
        super().__init__(model, VOCAB_SIZE)
        self.may_go = threading.Event()

    def compile(self, text: str) -> Future[Any]:
        return self._threads.submit(self.may_go.wait)


@pytest.fixture
def slow(model: Path) -> Iterator[SlowCompiler]:
    compiler = SlowCompiler(str(model))
    yield compiler
    compiler.may_go.set()
    compiler.close()


def test_compiling_too_long_fails_the_request(slow: SlowCompiler) -> None:
    now = [0.0]
    grammars = Grammars(slow, VOCAB_SIZE, clock=lambda: now[0])
    grammars.compile("slow", WORD)
    assert grammars.take_compiled() == {}
    now[0] = 19.0
    assert grammars.take_compiled() == {}
    now[0] = 21.0
    assert grammars.take_compiled() == {"slow": TOO_SLOW}
    assert grammars.take_compiled() == {}


@pytest.mark.parametrize("num_others", [0, MIN_PARALLEL_MASKS])
@pytest.mark.parametrize(("seconds_a_mask", "ends"), [(3.0, "error"), (0.01, "stop")])
def test_a_grammar_that_costs_ever_more_fails_its_request(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, seconds_a_mask: float, ends: str, num_others: int
) -> None:
    """Ambiguous rules, which make each mask take longer than the one before: others would wait for them."""
    readings = itertools.count()
    monkeypatch.setattr(llm.engine._grammars, "_cpu_clock", lambda: next(readings) * seconds_a_mask)
    names = [f"request {number}" for number in range(1 + num_others)]
    last = run(llm, *(request(name, WORD) for name in names), request("free", None, max_tokens=5))
    assert {last[name].finish_reason for name in names} == {ends}
    assert {last[name].error for name in names} == {TOO_COSTLY if ends == "error" else None}
    assert last["free"].finish_reason == "length"


def test_grammars_are_compiled_once_while_they_are_in_use(model: Path) -> None:
    compiler = GrammarCompiler(str(model), VOCAB_SIZE)
    texts = [f'start: "{number}"' for number in range(MAX_CACHED_GRAMMARS + 1)]
    first = compiler.compile(texts[0])
    assert compiler.compile(texts[0]) is first
    for text in texts[1:]:
        compiler.compile(text).result()
    assert compiler.compile(texts[0]) is not first
    bad = compiler.compile("start: /(/")
    with pytest.raises(GrammarError):
        bad.result()
    compiler.close()
