"""Run one request: take places, tokenize, generate, answer whole or as a stream; who leaves, leaves nothing behind."""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from forebay_server.api.disconnect import until_disconnect
from forebay_server.api.generation import ChoiceUpdate, Generation, GenerationRequest, Usage
from forebay_server.api.openai_types import GenerationBody
from forebay_server.api.queue_place import QueuePlace, queue_place
from forebay_server.api.request_facts import note_answer, note_run
from forebay_server.api.service import ServedModel, Service
from forebay_server.api.sse import EventStreamResponse, encode_json, event


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What all parts of one answer share."""

    id: str
    created: int
    model: str


class AnswerFormat(Protocol):
    """How each kind of endpoint writes the same updates."""

    id_prefix: str
    ends_with_done: bool
    """Whether `[DONE]` comes after the last event."""

    def whole(self, envelope: Envelope, updates: list[ChoiceUpdate], usage: Usage) -> dict[str, Any]:
        """The answer in one piece; `updates` of all choices in the order in which they came."""
        ...

    def events(
        self, envelope: Envelope, body: GenerationBody, updates: AsyncIterator[ChoiceUpdate], usage: Callable[[], Usage]
    ) -> AsyncIterator[bytes]:
        """The encoded events of a stream; `usage` tells the tokens so far."""
        ...


class ChunkFormat(ABC):
    """A stream of chunks, as chat and completions have."""

    ends_with_done = True

    @abstractmethod
    def chunks(self, envelope: Envelope, update: ChoiceUpdate) -> Iterable[dict[str, Any]]:
        """The chunks for one update, without `usage`."""

    @abstractmethod
    def usage_chunk(self, envelope: Envelope) -> dict[str, Any]:
        """A chunk without choices, to carry the usage."""

    async def events(
        self, envelope: Envelope, body: GenerationBody, updates: AsyncIterator[ChoiceUpdate], usage: Callable[[], Usage]
    ) -> AsyncIterator[bytes]:
        """See `AnswerFormat.events`."""
        options = body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        running_usage = options is not None and bool(options.continuous_usage_stats)
        async for update in updates:
            chunks = self.chunks(envelope, update)
            if with_usage or running_usage:
                told = usage().as_dict() if running_usage else None
                chunks = [{**chunk, "usage": told} for chunk in chunks]
            yield b"".join(map(event, chunks))
        if with_usage:
            yield event({**self.usage_chunk(envelope), "usage": usage().as_dict()})


async def answer(
    service: Service,
    request: Request,
    body: GenerationBody,
    num_prompts: int,
    prepare: Callable[[ServedModel], GenerationRequest],
    form: AnswerFormat,
    *,
    has_grammar: bool = False,
) -> Response:
    """Answer one request.

    Args:
        service: the server.
        request: for noticing that the client leaves.
        body: the checked body.
        num_prompts: how many prompts it has; known before tokenizing.
        prepare: tokenizes and checks, in a thread; may raise ApiError.
        form: chat or completions.
        has_grammar: whether `prepare` checks a grammar, which may take long.
    """
    model = service.require_model(body.model)
    place = queue_place(request, body, service.config)
    num_choices = num_prompts * (body.n or 1)
    envelope = Envelope(
        id=f"{form.id_prefix}-{secrets.token_hex(12)}", created=int(time.time()), model=body.model or service.model_name
    )
    told = {"answer_id": envelope.id, "model": envelope.model, "tenant": place.tenant}
    note_answer(request.scope, **told, stream=bool(body.stream))
    service.admission.admit(num_choices)
    holder = _Holder(service, request.scope, num_choices, place)

    async def prepared() -> GenerationRequest:
        return await service.in_thread(lambda: prepare(model), has_grammar=has_grammar)

    try:
        if body.stream:
            first, updates = await until_disconnect(request.receive, _begin(model, prepared, holder))
            events = form.events(envelope, body, _resumed(first, updates), lambda: holder.usage)
            return EventStreamResponse(events, holder.close, ends_with_done=form.ends_with_done)
        collected = await until_disconnect(request.receive, _collect(model, prepared, holder))
        content = form.whole(envelope, collected, holder.usage)
        holder.close()
        return Response(encode_json(content), media_type="application/json")
    except BaseException:
        holder.close()
        raise


class _Holder:
    """Places in the admission, until a generation holds them; closing gives back what is left, once."""

    def __init__(self, service: Service, scope: Scope, num_choices: int, place: QueuePlace) -> None:
        self._service = service
        self._scope = scope
        self._num_choices = num_choices
        self._place = place
        self.generation: Generation | None = None

    def start(self, prepared: GenerationRequest, model: ServedModel) -> Generation:
        """Take room for the tokens, which are known now, and hand everything to a generation."""
        self._service.admission.admit_tokens(sum(map(len, prepared.prompts)) * prepared.n)
        self.generation = Generation(self._service, prepared, model.text.tokenizer, self._place)
        note_run(self._scope, self.generation)
        self._num_choices = 0
        return self.generation

    @property
    def usage(self) -> Usage:
        return self.generation.usage if self.generation else Usage(0)

    def close(self) -> None:
        self._service.admission.release(self._num_choices)
        self._num_choices = 0
        if self.generation is not None:
            self.generation.close()


async def _begin(
    model: ServedModel, prepared: Callable[[], Awaitable[GenerationRequest]], holder: _Holder
) -> tuple[ChoiceUpdate, AsyncIterator[ChoiceUpdate]]:
    """Start and wait for the first update, so that a failure before it still gets its own status code."""
    updates = holder.start(await prepared(), model).updates()
    return await anext(updates), updates


async def _collect(
    model: ServedModel, prepared: Callable[[], Awaitable[GenerationRequest]], holder: _Holder
) -> list[ChoiceUpdate]:
    first, updates = await _begin(model, prepared, holder)
    return [first, *[update async for update in updates]]


async def _resumed(first: ChoiceUpdate, updates: AsyncIterator[ChoiceUpdate]) -> AsyncIterator[ChoiceUpdate]:
    yield first
    async for update in updates:
        yield update
