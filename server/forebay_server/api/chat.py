"""`POST /v1/chat/completions`."""

import time
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import Response

from forebay_server.api.answer_structure import answer_structure
from forebay_server.api.chat_format import ChatFormat
from forebay_server.api.chat_prompt import chat_prompt, check_conversation, joined_text
from forebay_server.api.chat_tools import ChatTools, tool_descriptions
from forebay_server.api.generation import GenerationRequest
from forebay_server.api.openai_answers import ChatAnswer, documented
from forebay_server.api.openai_types import ChatBody
from forebay_server.api.prompts import Truncation
from forebay_server.api.request_params import (
    check_token_ids,
    refuse_what_is_missing,
    sampling_params,
    text_options,
)
from forebay_server.api.running import answer
from forebay_server.api.service import ServedModel, Service
from forebay_server.api.structured_params import constraint_of
from forebay_server.errors import InvalidRequestError
from forebay_server.text.prompt_text import PromptText


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
        return await answer(
            service,
            request,
            body,
            1,
            lambda served: prepare_chat(body, served, arrival_time),
            form,
            has_grammar=has_grammar(body),
        )

    return router


def check_chat(body: ChatBody) -> None:
    """Refuse what can be refused without the model.

    Raises:
        InvalidRequestError: naming the field.
    """
    refuse_what_is_missing(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs is only for logprobs: true", param="top_logprobs")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequestError("prompt_logprobs is not for stream: true", param="prompt_logprobs")
    check_conversation(body.messages, body)
    ChatTools.of(body)
    constraint_of(body)


def has_grammar(body: ChatBody) -> bool:
    """Whether anything of the answer is enforced."""
    return constraint_of(body) is not None or ChatTools.of(body).must_call


def chat_format(body: ChatBody, model: ServedModel) -> ChatFormat:
    """How the answer to a chat request is written."""
    return ChatFormat(model.text.tokenizer, body, with_short_ids=model.tool_format.is_short_id)


def prepare_chat(body: ChatBody, model: ServedModel, arrival_time: float) -> GenerationRequest:
    """What to generate for a chat request; tokenizes, so it runs in a thread.

    Raises:
        InvalidRequestError: it cannot be served.
    """
    tools = ChatTools.of(body)
    prompt = chat_prompt(body.messages, body, model, tool_descriptions(tools.tools))
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
        prompt_logprobs=body.prompt_logprobs,
    )
    said = joined_text(body.messages[-1].content or "", "messages") if body.continue_final_message else ""
    structure = answer_structure(prompt, said, constraint_of(body), tools, model)
    return GenerationRequest(
        prompts=[prompt],
        sampling=[sampling],
        n=body.n or 1,
        text=replace(text_options(body), shown_token_ids=structure.shown_token_ids),
        prompt_texts=None
        if body.prompt_logprobs is None
        else [PromptText.of(prompt, model.text.tokenizer, skip_special_tokens=False)],
        arrival_time=arrival_time,
        cache_salt=body.cache_salt or "",
        grammar=structure.grammar,
        parser=structure.parser,
    )
