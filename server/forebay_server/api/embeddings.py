"""`POST /v1/embeddings`: the model's final hidden states of a text as one vector of length 1."""

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from forebay_server.api.disconnect import until_disconnect
from forebay_server.api.openai_answers import EmbeddingAnswer, documented
from forebay_server.api.openai_types import EmbeddingBody
from forebay_server.api.pooling import WINDOW, PooledPrompts, PoolingRequest
from forebay_server.api.prompts import Prompt, Truncation, prompt_list, prompt_token_ids
from forebay_server.api.queue_place import queue_place
from forebay_server.api.request_facts import note_answer, note_run
from forebay_server.api.request_params import refuse_what_is_missing
from forebay_server.api.service import ServedModel, Service
from forebay_server.api.sse import encode_json
from forebay_server.errors import InvalidRequestError
from forebay_server.text.vectors import base64_of, normalized

MAX_INPUTS = 2048


def embeddings_router(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.post("/v1/embeddings", summary="Turn texts into vectors", responses=documented(EmbeddingAnswer))
    async def embeddings(body: EmbeddingBody, request: Request) -> Response:
        arrival_time = time.monotonic()
        refuse_what_is_missing(body)
        model = service.require_model(body.model)
        place = queue_place(request, body, service.config)
        inputs = prompt_list(body.input)
        if len(inputs) > MAX_INPUTS:
            raise InvalidRequestError(f"input has {len(inputs)} items; at most {MAX_INPUTS} are taken", param="input")
        num_places = min(len(inputs), WINDOW, service.config.max_queued_requests)
        model_name = body.model or service.model_name
        note_answer(request.scope, answer_id="", model=model_name, stream=False, tenant=place.tenant)
        service.admission.admit(num_places)
        pooled: PooledPrompts | None = None

        async def work() -> tuple[list[list[float]], int]:
            nonlocal pooled
            prepared = await service.in_thread(lambda: _prepare(body, inputs, model, arrival_time))
            pooled = PooledPrompts(service, prepared, num_places, place)
            note_run(request.scope, pooled)
            return await pooled.vectors(), pooled.usage.prompt_tokens

        try:
            vectors, num_tokens = await until_disconnect(request.receive, work())
        finally:
            if pooled is None:
                service.admission.release(num_places)
            else:
                pooled.close()
        content = _answer(body, model_name, vectors, num_tokens)
        return Response(await service.in_thread(lambda: encode_json(content)), media_type="application/json")

    return router


def _prepare(body: EmbeddingBody, inputs: list[Prompt], model: ServedModel, arrival_time: float) -> PoolingRequest:
    longest = model.context_tokens
    truncation = Truncation.of(body, longest)
    prompts = []
    for index, item in enumerate(inputs):
        param = "input" if isinstance(body.input, str) or len(inputs) == 1 else f"input[{index}]"
        token_ids = prompt_token_ids(
            item, model, add_special_tokens=body.add_special_tokens is not False, truncation=truncation, param=param
        )
        if len(token_ids) > longest:
            raise InvalidRequestError(
                f"the context holds {longest} tokens; {param} has {len(token_ids)} (truncate_prompt_tokens cuts it)",
                param=param,
                code="context_length_exceeded",
            )
        prompts.append(token_ids)
    return PoolingRequest(
        prompts=prompts, pooling=body.pooling or "last", arrival_time=arrival_time, cache_salt=body.cache_salt or ""
    )


def _answer(body: EmbeddingBody, model_name: str, vectors: list[list[float]], num_tokens: int) -> dict[str, Any]:
    write = base64_of if body.encoding_format == "base64" else list[float]
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": write(normalized(vector))}
            for index, vector in enumerate(vectors)
        ],
        "model": model_name,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
