"""`POST /v1/completions`."""

import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from forebay_server.api.generation import ChoiceUpdate, GenerationRequest, Usage
from forebay_server.api.logprobs import completion_logprobs
from forebay_server.api.openai_types import CompletionBody
from forebay_server.api.request_params import (
    check_text_length,
    check_token_ids,
    refuse_what_is_missing,
    sampling_params,
    text_options,
)
from forebay_server.api.running import Envelope, answer
from forebay_server.api.service import ServedModel, Service
from forebay_server.errors import InvalidRequestError
from forebay_server.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16


def completions_router(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.post("/v1/completions", summary="Continue a text")
    async def completions(body: CompletionBody, request: Request) -> Response:
        arrival_time = time.monotonic()
        refuse_what_is_missing(body)
        model = service.require_model(body.model)
        prompts = _prompts(body)
        form = _CompletionFormat(model.text.tokenizer, with_logprobs=body.logprobs is not None)
        return await answer(
            service,
            request,
            body,
            len(prompts),
            lambda served: _prepare(body, prompts, served, arrival_time),
            form,
        )

    return router


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    """The prompts, each a text or token ids."""
    if isinstance(body.prompt, str):
        return [body.prompt]
    token_ids: list[int] = []
    prompts: list[str | list[int]] = []
    for item in body.prompt:  # all of one kind, as the body's type says
        if isinstance(item, int):
            token_ids.append(item)
        else:
            prompts.append(item)
    return prompts or [token_ids]


def _prepare(
    body: CompletionBody, prompts: list[str | list[int]], model: ServedModel, arrival_time: float
) -> GenerationRequest:
    token_ids = [_token_ids(prompt, body, model) for prompt in prompts]
    sampling = [
        sampling_params(
            body,
            model,
            num_prompt_tokens=len(prompt),
            max_tokens=body.max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            max_tokens_field="max_tokens",
            prompt_field="prompt",
            logprobs=body.logprobs,
        )
        for prompt in token_ids
    ]
    return GenerationRequest(
        prompts=token_ids,
        sampling=sampling,
        n=body.n or 1,
        text=text_options(body),
        arrival_time=arrival_time,
        cache_salt=body.cache_salt or "",
    )


def _token_ids(prompt: str | list[int], body: CompletionBody, model: ServedModel) -> list[int]:
    if isinstance(prompt, str):
        check_text_length(len(prompt), model, "prompt")
        prompt = model.text.tokenizer.encode(prompt, add_special_tokens=body.add_special_tokens is not False)
    check_token_ids(prompt, model, "prompt")
    if not prompt:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    return prompt


class _CompletionFormat:
    id_prefix = "cmpl"

    def __init__(self, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs

    def whole(self, envelope: Envelope, updates: list[ChoiceUpdate], usage: Usage) -> dict[str, Any]:
        choices = []
        for index in sorted({update.index for update in updates}):
            own = [update for update in updates if update.index == index]
            merged = ChoiceUpdate(
                index,
                "".join([update.text for update in own]),
                [detail for update in own for detail in update.details],
                own[-1].finish_reason,
                own[-1].stop_reason,
            )
            choices.append(self._choice(merged))
        return {**_head(envelope), "choices": choices, "usage": usage.as_dict()}

    def chunks(self, envelope: Envelope, update: ChoiceUpdate) -> Iterator[dict[str, Any]]:
        yield {**_head(envelope), "choices": [self._choice(update)]}

    def usage_chunk(self, envelope: Envelope) -> dict[str, Any]:
        return {**_head(envelope), "choices": []}

    def _choice(self, update: ChoiceUpdate) -> dict[str, Any]:
        logprobs = None
        if self._with_logprobs:
            logprobs = completion_logprobs(update.details, self._tokenizer)
        return {
            "index": update.index,
            "text": update.text,
            "logprobs": logprobs,
            "finish_reason": update.finish_reason,
            "stop_reason": update.stop_reason,
        }


def _head(envelope: Envelope) -> dict[str, Any]:
    return {
        "id": envelope.id,
        "object": "text_completion",
        "created": envelope.created,
        "model": envelope.model,
    }
