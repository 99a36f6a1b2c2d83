"""`POST /v1/chat/completions`."""

import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from forebay_server.api.generation import ChoiceUpdate, GenerationRequest, Usage
from forebay_server.api.logprobs import chat_logprobs
from forebay_server.api.openai_types import ChatBody
from forebay_server.api.prompts import Truncation
from forebay_server.api.request_params import (
    check_text_length,
    check_token_ids,
    refuse_what_is_missing,
    sampling_params,
    template_messages,
    text_options,
)
from forebay_server.api.running import ChunkFormat, Envelope, answer
from forebay_server.api.service import ServedModel, Service
from forebay_server.errors import InvalidRequestError
from forebay_server.text.chat_template import ChatTemplate
from forebay_server.text.tokenizer import Tokenizer


def chat_router(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.post("/v1/chat/completions", summary="Answer a conversation")
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        arrival_time = time.monotonic()
        check_chat(body)
        form = chat_format(body, service.require_model(body.model))
        return await answer(service, request, body, 1, lambda served: prepare_chat(body, served, arrival_time), form)

    return router


def check_chat(body: ChatBody) -> None:
    """Refuse what can be refused without the model.

    Raises:
        InvalidRequestError: naming the field.
    """
    refuse_what_is_missing(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs is only for logprobs: true", param="top_logprobs")


def chat_format(body: ChatBody, model: ServedModel) -> "ChatFormat":
    """How the answer to a chat request is written."""
    return ChatFormat(model.text.tokenizer, with_logprobs=bool(body.logprobs))


def require_chat_template(model: ServedModel) -> ChatTemplate:
    """The model's template.

    Raises:
        InvalidRequestError: it has none.
    """
    if model.text.chat_template is None:
        raise InvalidRequestError("the model has no chat template; use /v1/completions", param="messages")
    return model.text.chat_template


def chat_prompt(body: Any, model: ServedModel) -> list[int]:
    """Token ids of a body with `messages`, `add_generation_prompt` and `chat_template_kwargs`."""
    messages = template_messages(body.messages)
    check_text_length(sum(len(str(message["content"])) for message in messages), model, "messages")
    return require_chat_template(model).prompt_token_ids(
        messages,
        add_generation_prompt=body.add_generation_prompt is not False,
        variables=body.chat_template_kwargs,
    )


def prepare_chat(body: ChatBody, model: ServedModel, arrival_time: float) -> GenerationRequest:
    """What to generate for a chat request; tokenizes, so it runs in a thread.

    Raises:
        InvalidRequestError: it cannot be served.
    """
    prompt = chat_prompt(body, model)
    check_token_ids(prompt, model, "messages")
    if not prompt:
        raise InvalidRequestError("the prompt is empty", param="messages")
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    truncation = Truncation.of(body, model.context_tokens - (max_tokens or 1))
    prompt = prompt if truncation is None else truncation.apply(prompt)
    asked_field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    sampling = sampling_params(
        body,
        model,
        num_prompt_tokens=len(prompt),
        max_tokens=max_tokens,
        default_max_tokens=None,
        max_tokens_field=asked_field,
        prompt_field="messages",
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return GenerationRequest(
        prompts=[prompt],
        sampling=[sampling],
        n=body.n or 1,
        text=text_options(body),
        arrival_time=arrival_time,
        cache_salt=body.cache_salt or "",
    )


class ChatFormat(ChunkFormat):
    """Messages, deltas and their log-probabilities."""

    id_prefix = "chatcmpl"

    def __init__(self, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._begun: set[int] = set()

    def whole(self, envelope: Envelope, updates: list[ChoiceUpdate], usage: Usage) -> dict[str, Any]:
        """See `AnswerFormat.whole`."""
        choices = []
        for index in sorted({update.index for update in updates}):
            own = [update for update in updates if update.index == index]
            details = [detail for update in own for detail in update.details]
            message = {"role": "assistant", "content": "".join([update.text for update in own]), "refusal": None}
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": chat_logprobs(details, self._tokenizer) if self._with_logprobs else None,
                    "finish_reason": own[-1].finish_reason,
                    "stop_reason": own[-1].stop_reason,
                }
            )
        return {**_head(envelope, "chat.completion"), "choices": choices, "usage": usage.as_dict()}

    def chunks(self, envelope: Envelope, update: ChoiceUpdate) -> Iterator[dict[str, Any]]:
        """See `ChunkFormat.chunks`."""
        head = _head(envelope, "chat.completion.chunk")
        if update.index not in self._begun:
            self._begun.add(update.index)
            yield {**head, "choices": [_delta(update.index, {"role": "assistant", "content": ""})]}
        logprobs = chat_logprobs(update.details, self._tokenizer) if self._with_logprobs and update.details else None
        if update.text or logprobs:
            yield {**head, "choices": [_delta(update.index, {"content": update.text}, logprobs)]}
        if update.finish_reason is not None:
            last = _delta(update.index, {}) | {
                "finish_reason": update.finish_reason,
                "stop_reason": update.stop_reason,
            }
            yield {**head, "choices": [last]}

    def usage_chunk(self, envelope: Envelope) -> dict[str, Any]:
        """See `ChunkFormat.usage_chunk`."""
        return {**_head(envelope, "chat.completion.chunk"), "choices": []}


def _head(envelope: Envelope, kind: str) -> dict[str, Any]:
    return {"id": envelope.id, "object": kind, "created": envelope.created, "model": envelope.model}


def _delta(index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
