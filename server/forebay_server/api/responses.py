"""`POST /v1/responses`, the stateless part: what was said before comes with every request, and nothing is kept."""

import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from forebay_server.api.chat import chat_format, check_chat, has_grammar, prepare_chat
from forebay_server.api.chat_format import ChatFormat
from forebay_server.api.generation import ChoiceUpdate, GenerationRequest, Usage
from forebay_server.api.openai_answers import ResponseAnswer, documented
from forebay_server.api.openai_types import ChatBody, GenerationBody
from forebay_server.api.request_params import refuse_what_is_missing
from forebay_server.api.responses_events import Event, GrowingResponse
from forebay_server.api.responses_input import chat_body, errors_in_own_words
from forebay_server.api.responses_types import ResponsesBody
from forebay_server.api.running import Envelope, answer
from forebay_server.api.service import ServedModel, Service
from forebay_server.api.sse import named_event
from forebay_server.errors import ApiError, NotFoundError


def responses_router(service: Service) -> APIRouter:
    """The routes."""
    router = APIRouter()

    @router.post(
        "/v1/responses",
        summary="Answer, in the shape of OpenAI's Responses API; nothing is stored",
        responses=documented(ResponseAnswer, streams=True),
    )
    async def responses(body: ResponsesBody, request: Request) -> Response:
        arrival_time = time.monotonic()
        refuse_what_is_missing(body)
        chat = chat_body(body)
        with errors_in_own_words():
            check_chat(chat)
        model = service.require_model(body.model)
        form = _ResponsesFormat(body, chat_format(chat, model))
        return await answer(
            service,
            request,
            chat,
            1,
            lambda served: _prepare(chat, served, arrival_time),
            form,
            has_grammar=has_grammar(chat),
        )

    @router.get("/v1/responses/{response_id}", include_in_schema=False)
    @router.delete("/v1/responses/{response_id}", include_in_schema=False)
    @router.post("/v1/responses/{response_id}/cancel", include_in_schema=False)
    @router.get("/v1/responses/{response_id}/input_items", include_in_schema=False)
    async def stored_response(response_id: str) -> Response:
        raise NotFoundError(
            f"there is no response {response_id[:80]!r}: this server stores none", param="response_id", code="not_found"
        )

    return router


def _prepare(chat: ChatBody, model: ServedModel, arrival_time: float) -> GenerationRequest:
    with errors_in_own_words():
        return prepare_chat(chat, model, arrival_time)


class _ResponsesFormat:
    """Writes what the chat format says as a response."""

    id_prefix = "resp"
    ends_with_done = False

    def __init__(self, body: ResponsesBody, form: ChatFormat) -> None:
        self._body = body
        self._form = form

    def whole(self, envelope: Envelope, updates: list[ChoiceUpdate], usage: Usage) -> dict[str, Any]:
        growing = self._begin(envelope)
        for update in updates:
            _run_through(self._add(growing, envelope, update))
        _run_through(growing.end(usage))
        return growing.response

    async def events(
        self,
        envelope: Envelope,
        body: GenerationBody,
        updates: AsyncIterator[ChoiceUpdate],
        usage: Callable[[], Usage],
    ) -> AsyncIterator[bytes]:
        growing = self._begin(envelope)
        yield _encoded(growing.begin())
        try:
            async for update in updates:
                yield _encoded(self._add(growing, envelope, update))
        except ApiError as error:
            yield _encoded(growing.fail(error))
        else:
            yield _encoded(growing.end(usage()))

    def _begin(self, envelope: Envelope) -> GrowingResponse:
        return GrowingResponse(envelope.id.replace("-", "_"), envelope.created, envelope.model, self._body)

    def _add(self, growing: GrowingResponse, envelope: Envelope, update: ChoiceUpdate) -> Iterable[Event]:
        for chunk in self._form.chunks(envelope, update):
            for choice in chunk["choices"]:
                yield from growing.add(choice)


def _run_through(events: Iterable[Event]) -> None:
    """The events themselves are not wanted, but what they do to the response."""
    for _ in events:
        pass


def _encoded(events: Iterable[Event]) -> bytes:
    return b"".join([named_event(event["type"], event) for event in events])
