"""Grammars: the requests whose text is constrained: who waits for a compiled grammar, and each one's place in it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llguidance
import msgspec
import numpy as np

from forebay_server.engine.grammar_compiler import COMPILE_TIMEOUT_SECONDS, Compilation, GrammarCompiler
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest
from forebay_server.engine.thinking_gate import ALL_ALLOWED, Marks, MaskTable, ThinkingGate
from forebay_server.messages import GRAMMAR_ERROR
from forebay_server.structured.grammar import Grammar, Thinking

MIN_PARALLEL_MASKS = 8
"""Fewer masks are made faster one after the other (about 50 µs each) than by threads that must be woken first."""
TOO_SLOW = f"{GRAMMAR_ERROR}could not be compiled within {COMPILE_TIMEOUT_SECONDS:g} s"


@dataclass(slots=True)
class _Place:
    """Where one request is in its grammar."""

    matcher: llguidance.LLMatcher
    gate: ThinkingGate | None
    error: str | None = None


class Grammars:
    """The step loop's; one thread uses it.

    Args:
        compiler: of the model's grammars.
        vocab_size: width of the logits.
        clock: for the compile timeout.
    """

    def __init__(self, compiler: GrammarCompiler, vocab_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._compiler = compiler
        self._num_words = (vocab_size + 31) // 32
        self._clock = clock
        self._compiling: dict[str, tuple[Grammar, Compilation]] = {}
        self._places: dict[str, _Place] = {}
        self._marks: dict[tuple[str, str], Marks] = {}
        self._executor: llguidance.LLExecutor | None = None

    # ---- compiling ----

    def compile(self, request_id: str, grammar: Grammar) -> None:
        """Begin; `take_compiled` tells the end."""
        deadline = self._clock() + COMPILE_TIMEOUT_SECONDS
        self._compiling[request_id] = (grammar, Compilation(self._compiler.compile(grammar.text), deadline))

    def take_compiled(self) -> dict[str, str | None]:
        """Requests that may run now, and those that cannot, with the reason."""
        if not self._compiling:
            return {}
        news: dict[str, str | None] = {}
        for request_id, (grammar, compilation) in list(self._compiling.items()):
            if compilation.future.done():
                news[request_id] = self._place(request_id, grammar, compilation)
            elif self._clock() > compilation.deadline:
                news[request_id] = TOO_SLOW
        for request_id in news:
            del self._compiling[request_id]
        return news

    def _place(self, request_id: str, grammar: Grammar, compilation: Compilation) -> str | None:
        error = compilation.future.exception()
        if error is not None:
            return f"{GRAMMAR_ERROR}could not be compiled: {error}"
        gate = None if grammar.thinking is None else self._gate(grammar.thinking)
        self._places[request_id] = _Place(compilation.future.result().deep_copy(), gate)
        return None

    def _gate(self, thinking: Thinking) -> ThinkingGate:
        key = (thinking.start, thinking.end)
        if key not in self._marks:
            tokenizer = self._compiler.tokenizer
            self._marks[key] = Marks(*key, tokenizer.token_bytes.by_id, tokenizer.eos_token_ids)
        return ThinkingGate(self._marks[key], is_open=thinking.is_open)

    def drop(self, request_id: str) -> None:
        """Forget a request that ended; unknown ones are ignored."""
        self._compiling.pop(request_id, None)
        self._places.pop(request_id, None)

    # ---- a step ----

    def mask(self, requests: Sequence[ScheduledRequest]) -> None:
        """Set the masks of the constrained ones among the requests of a step."""
        if not self._places:
            return
        constrained = [request for request in requests if request.is_sampled and request.request_id in self._places]
        if not constrained:
            return
        table = np.zeros((len(constrained), self._num_words), dtype=np.uint32)
        places = [self._places[request.request_id] for request in constrained]
        self._fill(places, table)
        for row, (request, place) in enumerate(zip(constrained, places, strict=True)):
            if place.gate is not None:
                place.gate.widen(table[row])
            request.mask = table[row]

    def _fill(self, places: Sequence[_Place], table: MaskTable) -> None:
        """The grammars' own masks; a grammar that has become too large allows everything and fails its request."""
        wanted = [
            (place.matcher, row) for row, place in enumerate(places) if place.gate is None or place.gate.needs_grammar
        ]
        if len(wanted) < MIN_PARALLEL_MASKS:
            for matcher, row in wanted:
                matcher.unsafe_compute_mask_ptr(table[row].ctypes.data, table.strides[0])
        else:
            if self._executor is None:
                self._executor = llguidance.LLExecutor()
            self._executor.unsafe_compute_mask_ptr(wanted, table.ctypes.data, table.strides[0], len(table))
        for matcher, row in wanted:
            if matcher.is_error():
                places[row].error = _why(matcher)
                table[row].fill(ALL_ALLOWED)

    def advance(self, sampled: dict[str, SampledToken]) -> dict[str, SampledToken]:
        """Take in what was picked: tokens that complete their text say so, and failures become errors."""
        if not self._places:
            return sampled
        return {
            request_id: self._advance(self._places[request_id], token) if request_id in self._places else token
            for request_id, token in sampled.items()
        }

    def _advance(self, place: _Place, token: SampledToken) -> SampledToken:
        if token.error is not None or token.token_id < 0:
            return token
        if place.error is not None:
            return SampledToken(error=place.error)
        gate = place.gate
        if gate is not None and not gate.is_closed:
            return _advance_behind_gate(place, gate, token)
        return _consume(place.matcher, token)


def _advance_behind_gate(place: _Place, gate: ThinkingGate, token: SampledToken) -> SampledToken:
    was_answer = gate.needs_grammar
    gate.push(token.token_id)
    if not was_answer:
        return token
    if gate.is_closed:
        return _consume(place.matcher, token)
    if not gate.needs_grammar:  # what looked like an answer was the start mark
        place.matcher.reset()
    elif place.matcher.validate_tokens([token.token_id]) == 1:
        place.matcher.consume_token(token.token_id)
    else:
        gate.answer_is_possible = False
    return token


def _consume(matcher: llguidance.LLMatcher, token: SampledToken) -> SampledToken:
    if not matcher.consume_token(token.token_id):
        return SampledToken(error=_why(matcher))
    return msgspec.structs.replace(token, is_last=True) if matcher.is_stopped() else token


def _why(matcher: llguidance.LLMatcher) -> str:
    return f"{GRAMMAR_ERROR}could not be followed: {matcher.get_error().split('<state>')[0].strip()[:300]}"
