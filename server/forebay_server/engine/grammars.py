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
FREE_MASK_SECONDS, SECONDS_A_MASK = 5.0, 0.02
"""CPU time for the masks of one request: a large grammar's first ones take up to half a second, all others about 50 µs.
Those of an ambiguous grammar take ever longer, 0.1 s each after 500 tokens, for which every request would wait."""
TOO_COSTLY = f"{GRAMMAR_ERROR}takes too long to follow; rules that can read one text in many ways are the usual reason"


@dataclass(slots=True)
class _Place:
    """Where one request is in its grammar."""

    matcher: llguidance.LLMatcher
    gate: ThinkingGate | None
    error: str | None = None
    num_charged: int = 0
    """Masks whose cost was looked at."""
    charged_seconds: float = 0.0

    @property
    def is_too_costly(self) -> bool:
        return self.charged_seconds > FREE_MASK_SECONDS + SECONDS_A_MASK * self.num_charged


class Grammars:
    """The step loop's; one thread uses it.

    Args:
        compiler: of the model's grammars.
        vocab_size: width of the logits.
        clock: for the compile timeout.
        cpu_clock: for what masks cost.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._compiler = compiler
        self._num_words = (vocab_size + 31) // 32
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._turn = 0
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
            for one in wanted:
                self._fill_and_charge(one, places, table)
        else:  # one after the other has its turn to be charged
            if self._executor is None:
                self._executor = llguidance.LLExecutor()
            self._turn = (self._turn + 1) % len(wanted)
            self._fill_and_charge(wanted[self._turn], places, table)
            others = wanted[: self._turn] + wanted[self._turn + 1 :]
            self._executor.unsafe_compute_mask_ptr(others, table.ctypes.data, table.strides[0], len(table))
        for matcher, row in wanted:
            place = places[row]
            if matcher.is_error() or place.is_too_costly:
                place.error = _why(matcher) if matcher.is_error() else TOO_COSTLY
                table[row].fill(ALL_ALLOWED)

    def _fill_and_charge(
        self, wanted: tuple[llguidance.LLMatcher, int], places: Sequence[_Place], table: MaskTable
    ) -> None:
        matcher, row = wanted
        started = self._cpu_clock()
        matcher.unsafe_compute_mask_ptr(table[row].ctypes.data, table.strides[0])
        places[row].charged_seconds += self._cpu_clock() - started
        places[row].num_charged += 1

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
