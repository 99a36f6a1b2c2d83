"""`POST /v1/completions`."""

import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from forebay_server.api.generation import ChoiceUpdate, GenerationRequest, Usage
from forebay_server.api.logprobs import completion_logprobs, prompt_logprobs, token_namer
from forebay_server.api.openai_answers import CompletionAnswer, documented
from forebay_server.api.openai_types import CompletionBody
from forebay_server.api.prompts import Prompt, Truncation, prompt_list, prompt_token_ids
from forebay_server.api.request_params import (
    refuse_what_is_missing,
    sampling_params,
    text_options,
)
from forebay_server.api.running import ChunkFormat, Envelope, answer
from forebay_server.api.service import ServedModel, Service
from forebay_server.api.structured_params import constraint_of
from forebay_server.errors import InvalidRequestError
from forebay_server.structured.grammar import Grammar
from forebay_server.text.prompt_text import PromptText
from forebay_server.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16


def completions_router(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.post("/v1/completions", summary="Continue a text", responses=documented(CompletionAnswer, streams=True))
    async def completions(body: CompletionBody, request: Request) -> Response:
        arrival_time = time.monotonic()
        refuse_what_is_missing(body)
        _check_echo(body)
        model = service.require_model(body.model)
        prompts = prompt_list(body.prompt)
        form = _CompletionFormat(model.text.tokenizer, body)
        return await answer(
            service,
            request,
            body,
            len(prompts),
            lambda served: _prepare(body, prompts, served, arrival_time),
            form,
            has_grammar=constraint_of(body) is not None,
        )

    return router


def _check_echo(body: CompletionBody) -> None:
    """Refuse combinations that say nothing."""
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequestError("max_tokens is 0; that is only for echo: true", param="max_tokens")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequestError("prompt_logprobs is not for stream: true", param="prompt_logprobs")


def _prepare(body: CompletionBody, prompts: list[Prompt], model: ServedModel, arrival_time: float) -> GenerationRequest:
    truncation = Truncation.of(body, model.context_tokens - max(1, body.max_tokens or 1))
    with_special = body.add_special_tokens is not False
    token_ids = [
        prompt_token_ids(prompt, model, add_special_tokens=with_special, truncation=truncation, param="prompt")
        for prompt in prompts
    ]
    sampling = [
        sampling_params(
            body,
            model,
            num_prompt_tokens=len(prompt),
            max_tokens=1 if body.max_tokens == 0 else body.max_tokens,  # 0 is not for the sampler, which is not reached
            default_max_tokens=DEFAULT_MAX_TOKENS,
            max_tokens_field="max_tokens",
            prompt_field="prompt",
            logprobs=body.logprobs,
            prompt_logprobs=_prompt_logprobs(body),
        )
        for prompt in token_ids
    ]
    constraint = constraint_of(body)
    options = text_options(body)
    tokenizer = model.text.tokenizer
    return GenerationRequest(
        prompts=token_ids,
        sampling=sampling,
        n=body.n or 1,
        text=options,
        prompt_texts=[
            PromptText.of(prompt, tokenizer, skip_special_tokens=options.skip_special_tokens) for prompt in token_ids
        ]
        if body.echo or body.prompt_logprobs is not None
        else None,
        echo=bool(body.echo),
        prompt_only=body.max_tokens == 0,
        arrival_time=arrival_time,
        cache_salt=body.cache_salt or "",
        grammar=None if constraint is None else Grammar(text=constraint.rules()),
    )


def _prompt_logprobs(body: CompletionBody) -> int | None:
    """How many alternatives the engine is asked for at each prompt token: the most of what both fields want."""
    wanted = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((number for number in wanted if number is not None), default=None)


class _CompletionFormat(ChunkFormat):
    id_prefix = "cmpl"

    def __init__(self, tokenizer: Tokenizer, body: CompletionBody) -> None:
        self._tokenizer = tokenizer
        self._echo = bool(body.echo)
        self._num_logprobs = body.logprobs
        self._with_token_ids = bool(body.return_token_ids)
        self._name_token = token_namer(tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._num_prompt_logprobs = body.prompt_logprobs

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
                own[0].prompt_details,
                token_ids=[token_id for update in own for token_id in update.token_ids],
                prompt_token_ids=own[0].prompt_token_ids,
            )
            choices.append(self._choice(merged))
        return {**_head(envelope), "choices": choices, "usage": usage.as_dict()}

    def chunks(self, envelope: Envelope, update: ChoiceUpdate) -> Iterator[dict[str, Any]]:
        yield {**_head(envelope), "choices": [self._choice(update)]}

    def usage_chunk(self, envelope: Envelope) -> dict[str, Any]:
        return {**_head(envelope), "choices": []}

    def _choice(self, update: ChoiceUpdate) -> dict[str, Any]:
        logprobs = None
        if self._num_logprobs is not None:
            details = [*(update.prompt_details if self._echo else ()), *update.details]
            logprobs = completion_logprobs(details, self._name_token, self._num_logprobs)
        choice = {
            "index": update.index,
            "text": update.text,
            "logprobs": logprobs,
            "finish_reason": update.finish_reason,
            "stop_reason": update.stop_reason,
        }
        if self._num_prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(
                update.prompt_details, self._tokenizer, self._num_prompt_logprobs
            )
        if self._with_token_ids:
            choice["token_ids"] = update.token_ids
            if update.prompt_token_ids:
                choice["prompt_token_ids"] = update.prompt_token_ids
        return choice


def _head(envelope: Envelope) -> dict[str, Any]:
    return {
        "id": envelope.id,
        "object": "text_completion",
        "created": envelope.created,
        "model": envelope.model,
    }
