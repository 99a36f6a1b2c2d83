"""Grammars: the requests whose text is constrained: who waits for a compiled grammar, and each one's place in it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llguidance
import msgspec
import numpy as np
import torch

from forebay_server.engine.grammar_compiler import COMPILE_TIMEOUT_SECONDS, Compilation, GrammarCompiler
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest
from forebay_server.engine.thinking_gate import Marks, MaskRow, ThinkingGate
from forebay_server.messages import GRAMMAR_ERROR
from forebay_server.structured.grammar import Grammar, Thinking

TOO_SLOW = f"{GRAMMAR_ERROR}could not be compiled within {COMPILE_TIMEOUT_SECONDS:g} s"


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Masks for consecutive rows of logits."""

    first_row: int
    words: torch.Tensor
    """[num_rows, ceil(vocab_size / 32)], int32, as `forebay_kernels.apply_bitmask` reads them."""


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

    def masks(self, requests: Sequence[ScheduledRequest]) -> RowMasks | None:
        """What each request may pick next.

        Args:
            requests: in the order of the rows.

        Returns:
            From the first to the last row that is constrained; None: none is.
        """
        if not self._places:
            return None
        rows = [row for row, request in enumerate(requests) if request.request_id in self._places]
        if not rows:
            return None
        words = torch.full((rows[-1] - rows[0] + 1, self._num_words), -1, dtype=torch.int32)
        table = words.numpy().view(np.uint32)
        by_row = {row - rows[0]: self._places[requests[row].request_id] for row in rows}
        self._fill(by_row, words, table)
        for row, place in by_row.items():
            if place.gate is not None and not place.gate.is_closed:
                _widen(place, table[row])
        return RowMasks(rows[0], words)

    def _fill(self, place_by_row: dict[int, _Place], words: torch.Tensor, table: np.ndarray) -> None:
        wanted = [
            (place.matcher, row)
            for row, place in place_by_row.items()
            if place.gate is None or place.gate.needs_grammar
        ]
        if self._executor is None:
            self._executor = llguidance.LLExecutor()
        if wanted:
            self._executor.unsafe_compute_mask_ptr(wanted, words.data_ptr(), self._num_words * 4, words.shape[0])
        for matcher, row in wanted:
            if matcher.is_error():
                place_by_row[row].error = _why(matcher)
                table[row].fill(0xFFFFFFFF)

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


def _widen(place: _Place, row: MaskRow) -> None:
    if place.gate is not None:
        if not place.gate.needs_grammar:
            row.fill(0)
        place.gate.widen(row)


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
    return f"{GRAMMAR_ERROR}could not be followed: {matcher.get_error().split('<state>')[0].strip()[:500]}"
