"""`POST /v1/chat/completions`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from forebay_server.api.answer_structure import answer_structure
from forebay_server.api.chat_format import ChatFormat
from forebay_server.api.chat_tools import ChatTools
from forebay_server.api.generation import GenerationRequest
from forebay_server.api.openai_answers import ChatAnswer, documented
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
from forebay_server.api.running import answer
from forebay_server.api.service import ServedModel, Service
from forebay_server.api.structured_params import constraint_of
from forebay_server.errors import InvalidRequestError
from forebay_server.text.chat_template import ChatTemplate
from forebay_server.text.tool_prompt import with_tools_in_words


def chat_router(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.post(
        "/v1/chat/completions", summary="Answer a conversation", responses=documented(ChatAnswer, streams=True)
    )
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
    ChatTools.of(body)
    constraint_of(body)


def chat_format(body: ChatBody, model: ServedModel) -> ChatFormat:
    """How the answer to a chat request is written."""
    return ChatFormat(
        model.text.tokenizer, with_logprobs=bool(body.logprobs), with_short_ids=model.tool_format.is_short_id
    )


def require_chat_template(model: ServedModel) -> ChatTemplate:
    """The model's template.

    Raises:
        InvalidRequestError: it has none.
    """
    if model.text.chat_template is None:
        raise InvalidRequestError("the model has no chat template; use /v1/completions", param="messages")
    return model.text.chat_template


def chat_prompt(body: Any, model: ServedModel, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
    """Token ids of a body with `messages`, `add_generation_prompt` and `chat_template_kwargs`.

    Args:
        body: a chat request, or one that only wants to know its tokens.
        model: whose template renders it; one that knows nothing of tools gets them in words.
        tools: as OpenAI describes them.
    """
    messages = template_messages(body.messages)
    check_text_length(sum(len(str(message["content"])) for message in messages), model, "messages")
    template = require_chat_template(model)
    if not template.knows_tools:
        messages, tools = with_tools_in_words(messages, tools), ()
    return template.prompt_token_ids(
        messages,
        add_generation_prompt=body.add_generation_prompt is not False,
        variables=body.chat_template_kwargs,
        tools=tools,
    )


def prepare_chat(body: ChatBody, model: ServedModel, arrival_time: float) -> GenerationRequest:
    """What to generate for a chat request; tokenizes, so it runs in a thread.

    Raises:
        InvalidRequestError: it cannot be served.
    """
    tools = ChatTools.of(body)
    prompt = chat_prompt(body, model, tools.descriptions())
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
    structure = answer_structure(prompt, constraint_of(body), tools, model)
    return GenerationRequest(
        prompts=[prompt],
        sampling=[sampling],
        n=body.n or 1,
        text=replace(text_options(body), shown_token_ids=structure.shown_token_ids),
        arrival_time=arrival_time,
        cache_salt=body.cache_salt or "",
        grammar=structure.grammar,
        parser=structure.parser,
    )
