"""`POST /tokenize` and `POST /detokenize`: what the model sees of a prompt, and back."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from forebay_server.api.chat_prompt import chat_prompt
from forebay_server.api.chat_tools import tool_descriptions
from forebay_server.api.openai_answers import DetokenizeAnswer, TokenizeAnswer, TokenizerInfo, documented
from forebay_server.api.openai_types import DetokenizeBody, TokenizeBody
from forebay_server.api.request_params import check_token_ids
from forebay_server.api.service import ServedModel, Service
from forebay_server.api.sse import encode_json
from forebay_server.errors import InvalidRequestError


def tokenize_router(service: Service) -> APIRouter:
    """The routes."""
    router = APIRouter()

    @router.post("/tokenize", summary="Text or messages to token ids", responses=documented(TokenizeAnswer))
    async def tokenize(body: TokenizeBody) -> Response:
        model = service.require_model(body.model)
        token_ids = await service.in_thread(lambda: _token_ids(body, model))
        strings = [model.text.tokenizer.text_of(token_id) for token_id in token_ids]
        return _json(
            {
                "count": len(token_ids),
                "max_model_len": model.context_tokens,
                "tokens": token_ids,
                "token_strs": strings if body.return_token_strs else None,
            }
        )

    @router.post(
        "/detokenize", summary="Token ids to text, control tokens included", responses=documented(DetokenizeAnswer)
    )
    async def detokenize(body: DetokenizeBody) -> Response:
        model = service.require_model(body.model)
        check_token_ids(body.tokens, model, "tokens")
        tokenizer = model.text.tokenizer
        return _json(
            {"prompt": await service.in_thread(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))}
        )

    @router.get(
        "/tokenizer_info", summary="Special tokens and template", responses=documented(TokenizerInfo, has_body=False)
    )
    async def tokenizer_info() -> Response:
        text = service.require_model().text
        tokenizer = text.tokenizer
        return _json(
            {
                "vocab_size": tokenizer.vocab_size,
                "bos_token": tokenizer.bos_token or None,
                "eos_token": tokenizer.eos_token or None,
                "eos_token_ids": tokenizer.eos_token_ids,
                "special_tokens": tokenizer.special_tokens,
                "chat_template": text.chat_template.source if text.chat_template else None,
            }
        )

    return router


def _json(content: dict[str, Any]) -> Response:
    return Response(encode_json(content), media_type="application/json")


def _token_ids(body: TokenizeBody, model: ServedModel) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("give exactly one of prompt and messages", param="prompt")
    if body.messages is not None:
        return chat_prompt(body.messages, body, model, tool_descriptions(body.tools or ()))
    return model.text.tokenizer.encode(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
