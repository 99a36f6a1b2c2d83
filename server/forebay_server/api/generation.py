"""From a checked request to a stream of text: all choices of all prompts, shared by chat and completions."""

import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from forebay_server.api.outputs import first_output, limit_time, next_output
from forebay_server.api.queue_place import QueuePlace
from forebay_server.api.service import Service
from forebay_server.errors import ApiError
from forebay_server.messages import AddRequest, FinishReason, RequestOutput, TokenLogprobs
from forebay_server.metrics import RequestMetrics
from forebay_server.sampling_params import SamplingParams
from forebay_server.structured.grammar import Grammar
from forebay_server.text.choice_text import ChoiceText, TextUpdate
from forebay_server.text.message_parts import Part, PartParser, merged
from forebay_server.text.prompt_text import PromptText
from forebay_server.text.reasoning import PlainText, ReasoningSplitter
from forebay_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How tokens become text."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    shown_token_ids: frozenset[int] = frozenset()
    """Control tokens that have text all the same: marks that the parser looks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What to generate; choice `prompt * n + j` is the j-th answer to a prompt."""

    prompts: Sequence[list[int]]
    sampling: Sequence[SamplingParams]
    """One for each prompt."""
    n: int
    text: TextOptions
    arrival_time: float
    """CLOCK_MONOTONIC seconds."""
    cache_salt: str = ""
    prompt_texts: Sequence[PromptText] | None = None
    """One for each prompt, when the prompt or its log-probabilities are wanted back."""
    echo: bool = False
    """The text of each choice begins with its prompt."""
    prompt_only: bool = False
    """No answer is wanted: nothing is sampled."""
    grammar: Grammar | None = None
    """What the text may be."""
    parser: Callable[[], PartParser] | None = None
    """Makes what takes the text of a choice apart; None: it is all content."""

    @property
    def num_choices(self) -> int:
        """Of all prompts together."""
        return len(self.prompts) * self.n


@dataclass(frozen=True, slots=True)
class TokenDetail:
    """One token with its log-probabilities."""

    token_id: int
    text_offset: int
    """Characters of the choice's text before it."""
    logprobs: TokenLogprobs | None
    """None for the first token of a prompt."""


@dataclass(frozen=True, slots=True)
class ChoiceUpdate:
    """News of one choice. Text may be empty only in the last one, and so may parts."""

    index: int
    text: str
    details: list[TokenDetail]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    prompt_details: list[TokenDetail] = field(default_factory=list)
    """In the first update, of every prompt token, when asked for."""
    parts: list[Part] = field(default_factory=list)
    """The text taken apart, less what is held back."""
    token_ids: list[int] = field(default_factory=list)
    """Of the tokens that are new; the text of the last ones may be held back still."""
    prompt_token_ids: Sequence[int] = ()
    """In the first update."""


@dataclass(slots=True)
class Usage:
    """Tokens so far."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int | None = None
    """Of the completion tokens; None: they are not told apart."""

    def as_dict(self) -> dict[str, object]:
        """As OpenAI writes it."""
        details = None if self.reasoning_tokens is None else {"reasoning_tokens": self.reasoning_tokens}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            **({} if details is None else {"completion_tokens_details": details}),
        }


@dataclass(slots=True)
class _Choice:
    index: int
    text: ChoiceText
    parser: PartParser
    num_prompt_tokens: int
    unsent_echo: str = ""
    """The prompt's text, when it is to come first and has not yet."""
    num_echo_characters: int = 0
    num_tokens: int = 0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    queue_seconds: float | None = None
    waiting_details: list[TokenDetail] = field(default_factory=list)
    """Of tokens whose text has not been shown yet."""
    prompt_details: list[TokenDetail] = field(default_factory=list)
    """Of prompt tokens, until the first update."""
    waiting_token_ids: list[int] = field(default_factory=list)
    """Since the last update."""
    is_begun: bool = False
    """Whether there was an update."""


class Generation:
    """One running request. Its places in the admission are taken before, and given back here as its choices end.

    Whoever makes one calls `close` in the end.

    Args:
        service: the server.
        request: what to generate; already admitted.
        tokenizer: of the model.
        place: in the queue.
    """

    def __init__(self, service: Service, request: GenerationRequest, tokenizer: Tokenizer, place: QueuePlace) -> None:
        self._service = service
        self._request = request
        self._metrics: RequestMetrics = service.metrics
        self.usage = Usage(sum(map(len, request.prompts)))
        self._choice_by_id: dict[str, _Choice] = {}
        self._messages: list[AddRequest] = []
        self._most_tokens = 0
        self._stop_clock: Callable[[], None] = lambda: None
        self._finish_reasons: dict[int, FinishReason] = {}
        self._queue_seconds: float | None = None
        self._first_token_seconds: float | None = None
        engine_id = secrets.token_hex(8)  # never the client's: two clients may send the same
        for index in range(request.num_choices):
            prompt, sampling = request.prompts[index // request.n], request.sampling[index // request.n]
            message = AddRequest(
                request_id=f"{engine_id}-{index}",
                prompt_token_ids=prompt,
                sampling=sampling,
                choice_index=index % request.n,
                arrival_time=request.arrival_time,
                priority=place.priority,
                tenant=place.tenant,
                cache_salt=request.cache_salt,
                pooling="none" if request.prompt_only else None,
                grammar=None if request.prompt_only else request.grammar,
            )
            text = ChoiceText(
                tokenizer,
                stop=request.text.stop,
                include_stop=request.text.include_stop,
                skip_special_tokens=request.text.skip_special_tokens,
                shown_token_ids=request.text.shown_token_ids,
                min_tokens=sampling.min_tokens,
            )
            self._messages.append(message)
            echo = request.prompt_texts[index // request.n].text if request.prompt_texts and request.echo else ""
            parser = PlainText() if request.parser is None else request.parser()
            if isinstance(parser, ReasoningSplitter):
                self.usage.reasoning_tokens = 0
            self._choice_by_id[message.request_id] = _Choice(index, text, parser, len(prompt), echo, len(echo))

    async def updates(self) -> AsyncIterator[ChoiceUpdate]:
        """Run to the end.

        Raises:
            UnavailableError: no token came within the queue timeout, or the engine is gone.
            RequestTimeoutError: the whole answer was not there within the request timeout.
            InternalError: the engine could not serve this request.
        """
        arrival_time, config = self._request.arrival_time, self._service.config
        try:
            queue = self._service.engine.submit(self._messages)
            self._stop_clock = limit_time(queue, arrival_time, config.request_timeout_seconds)
            output = await first_output(queue, arrival_time, config.queue_timeout_seconds)
            self._metrics.count_prompt_tokens(self.usage.prompt_tokens)
            self._metrics.observe("request_params_n", self._request.n)
            while True:
                update = self._take(output)
                if update is not None:
                    yield update
                if not self._choice_by_id:
                    return
                output = await next_output(queue)
        except ApiError:
            self.close("error")
            raise

    def facts(self) -> dict[str, object]:
        """What there is to log; times in seconds from the request's arrival."""
        return {
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "finish_reasons": [reason for _, reason in sorted(self._finish_reasons.items())],
            "queue_seconds": self._queue_seconds,
            "first_token_seconds": self._first_token_seconds,
        }

    def close(self, finish_reason: FinishReason = "abort") -> None:
        """Abort whatever still runs (the client left, or the request failed); may be called twice."""
        self._stop_clock()
        self._service.engine.abort(list(self._choice_by_id))
        for choice in self._choice_by_id.values():
            self._count_end(choice, finish_reason)
        self._choice_by_id.clear()

    def _take(self, output: RequestOutput) -> ChoiceUpdate | None:
        choice = self._choice_by_id.get(output.request_id)
        if choice is None:  # ended by a stop string; the engine has not heard of it yet
            return None
        dropped = TextUpdate("", 0, [], "length", None)
        update = dropped if self._request.prompt_only else choice.text.push(output)
        self._count_tokens(choice, output, update.num_tokens)
        choice.waiting_token_ids += output.token_ids[: update.num_tokens]
        if output.logprobs is not None:
            for token_id, offset, logprobs in zip(output.token_ids, update.text_offsets, output.logprobs, strict=False):
                choice.waiting_details.append(TokenDetail(token_id, choice.num_echo_characters + offset, logprobs))
        if output.prompt_logprobs is not None:
            choice.prompt_details = self._prompt_details(choice, output.prompt_logprobs)
        shown = choice.unsent_echo + update.text
        parts = self._parts(choice, shown, update)
        if update.finish_reason is not None:
            del self._choice_by_id[output.request_id]
            if output.finish_reason is None:
                self._service.engine.abort([output.request_id])
            self._count_end(choice, update.finish_reason)
        elif not parts:
            return None
        choice.unsent_echo = ""
        prompt_details, choice.prompt_details = choice.prompt_details, []
        details, choice.waiting_details = choice.waiting_details, []
        token_ids, choice.waiting_token_ids = choice.waiting_token_ids, []
        prompt_token_ids = () if choice.is_begun else self._request.prompts[choice.index // self._request.n]
        choice.is_begun = True
        return ChoiceUpdate(
            choice.index,
            shown,
            details,
            update.finish_reason,
            update.stop_reason,
            prompt_details,
            parts,
            token_ids,
            prompt_token_ids,
        )

    def _parts(self, choice: _Choice, shown: str, update: TextUpdate) -> list[Part]:
        """Take new text apart; tokens count as reasoning when it is going on before or after them."""
        parser = choice.parser
        splitter = parser if isinstance(parser, ReasoningSplitter) else None
        is_reasoning = splitter is not None and splitter.is_reasoning
        parts = parser.push(shown)
        if splitter is not None and (is_reasoning or splitter.is_reasoning):
            self.usage.reasoning_tokens = (self.usage.reasoning_tokens or 0) + update.num_tokens
        return parts if update.finish_reason is None else merged([*parts, *parser.finish()])

    def _prompt_details(self, choice: _Choice, logprobs: list[TokenLogprobs]) -> list[TokenDetail]:
        if self._request.prompt_texts is None:
            return []
        prompt = self._request.prompt_texts[choice.index // self._request.n]
        rows = zip(prompt.token_ids, prompt.offsets, [None, *logprobs], strict=True)
        return [TokenDetail(*row) for row in rows]

    def _count_tokens(self, choice: _Choice, output: RequestOutput, num_tokens: int) -> None:
        now = time.monotonic()
        if output.queue_seconds is not None:
            choice.queue_seconds = output.queue_seconds
            if self._queue_seconds is None:
                self._queue_seconds = output.queue_seconds
        if choice.num_tokens == 0 and choice.index % self._request.n == 0:
            self.usage.cached_tokens += output.num_cached_tokens
        if num_tokens == 0:
            return
        if choice.num_tokens == 0:
            choice.first_token_time = now
            if self._first_token_seconds is None:
                self._first_token_seconds = now - self._request.arrival_time
            self._metrics.observe("time_to_first_token_seconds", now - self._request.arrival_time)
        else:
            for _ in range(num_tokens):
                self._metrics.observe("inter_token_latency_seconds", (now - choice.last_token_time) / num_tokens)
        choice.last_token_time = now
        choice.num_tokens += num_tokens
        self.usage.completion_tokens += num_tokens
        self._metrics.count_generated_tokens(num_tokens)

    def _count_end(self, choice: _Choice, finish_reason: FinishReason) -> None:
        self._service.admission.release(1, choice.num_prompt_tokens)
        observe = self._metrics.observe
        self._metrics.count_finished(finish_reason)
        self._finish_reasons[choice.index] = finish_reason
        arrival = self._request.arrival_time
        observe("e2e_request_latency_seconds", time.monotonic() - arrival)
        observe("request_prompt_tokens", choice.num_prompt_tokens)
        observe("request_generation_tokens", choice.num_tokens)
        observe("request_params_max_tokens", self._request.sampling[choice.index // self._request.n].max_tokens)
        self._most_tokens = max(self._most_tokens, choice.num_tokens)
        if len(self._finish_reasons) == self._request.num_choices:
            observe("request_max_num_generation_tokens", self._most_tokens)
        if choice.num_tokens:
            decode_seconds = choice.last_token_time - choice.first_token_time
            observe("request_decode_time_seconds", decode_seconds)
            if choice.num_tokens > 1:
                observe("request_time_per_output_token_seconds", decode_seconds / (choice.num_tokens - 1))
        if choice.queue_seconds is not None:
            observe("request_queue_time_seconds", choice.queue_seconds)
            if choice.num_tokens:
                prefill = choice.first_token_time - arrival - choice.queue_seconds
                observe("request_prefill_time_seconds", max(0.0, prefill))
                observe("request_inference_time_seconds", max(0.0, prefill) + decode_seconds)
