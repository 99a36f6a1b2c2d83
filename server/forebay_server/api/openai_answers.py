"""What answers look like, for the OpenAPI page. Answers are not built from these types; tests compare the two."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Answer(BaseModel):
    """Answers may gain fields; clients skip those that they do not know."""

    model_config = ConfigDict(extra="allow")


class ErrorDescription(_Answer):
    """What went wrong."""

    message: str = Field(min_length=1)
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "not_found_error",
        "rate_limit_error",
        "service_unavailable_error",
        "internal_server_error",
        "timeout_error",
    ]
    param: str | None
    code: str | None


class ErrorAnswer(_Answer):
    """Every error."""

    error: ErrorDescription


class PromptTokensDetails(_Answer):
    """Of `prompt_tokens`."""

    cached_tokens: int = Field(ge=0, description="found in the prefix cache")


class UsageAnswer(_Answer):
    """Tokens of all choices together."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(_Answer):
    """One entry a token in each list."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


FinishReason = Literal["stop", "length", "abort", "tool_calls"]


class CompletionChoice(_Answer):
    """One answer to one prompt."""

    index: int = Field(ge=0)
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None = Field(description="null only before the end of a stream")
    stop_reason: str | int | None = Field(description="the stop string or stop token that ended it")


class CompletionAnswer(_Answer):
    """`POST /v1/completions`; the events of a stream have the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer


class ChatLogprob(_Answer):
    """One token."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(ChatLogprob):
    """One token and the likeliest ones at its place."""

    top_logprobs: list[ChatLogprob]


class ChatLogprobs(_Answer):
    """One entry a token."""

    content: list[ChatTokenLogprob] | None
    refusal: None


class ChatMessageAnswer(_Answer):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None


class ChatChoice(_Answer):
    """One answer."""

    index: int = Field(ge=0)
    message: ChatMessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None


class ChatAnswer(_Answer):
    """`POST /v1/chat/completions`; a stream has `chat.completion.chunk` events instead, with `delta` for `message`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer


class EmbeddingItem(_Answer):
    """The vector of one input."""

    object: Literal["embedding"]
    index: int = Field(ge=0)
    embedding: list[float] | str = Field(description="numbers, or little-endian float32 in base64")


class EmbeddingUsage(_Answer):
    """Tokens of all inputs together."""

    prompt_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)


class EmbeddingAnswer(_Answer):
    """`POST /v1/embeddings`."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


class ResponseAnswer(_Answer):
    """`POST /v1/responses`; a stream has events that end with `response.completed` or `response.incomplete`."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class TokenizeAnswer(_Answer):
    """`POST /tokenize`."""

    count: int = Field(ge=0)
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(_Answer):
    """`POST /detokenize`."""

    prompt: str


class TokenizerInfo(_Answer):
    """`GET /tokenizer_info`."""

    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: list[int]
    special_tokens: dict[str, int]
    chat_template: str | None


class ModelAnswer(_Answer):
    """One name that the server answers to."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int = Field(description="tokens of prompt and answer together")


class ModelsAnswer(_Answer):
    """`GET /v1/models`."""

    object: Literal["list"]
    data: list[ModelAnswer]


class HealthAnswer(_Answer):
    """`GET /health`: one word, and what it means."""

    reason: str
    message: str


_ERRORS = {
    400: "a field is missing, of the wrong kind or out of range, or prompt and answer do not fit",
    401: "no API key, or a wrong one",
    404: "unknown model",
    413: "the body is too long",
    415: "the body is not JSON",
    429: "too many requests wait; `Retry-After` says when to come back",
    500: "this request failed; the server lives on",
    503: "loading, restarting or shutting down; `Retry-After` says when to come back",
    504: "not answered in time",
}


_EVENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string"},
        "data": {"type": "string", "description": "JSON, or `[DONE]` after the last event"},
    },
    "required": ["data"],
    "description": "each event of the stream",
}


def documented(answer: type[BaseModel], *, has_body: bool = True, streams: bool = False) -> dict[int | str, Any]:
    """The `responses` of a route.

    Args:
        answer: of status 200.
        has_body: whether the request has one, which may be wrong.
        streams: whether the answer may be an event stream instead.
    """
    whole: dict[str, Any] = {"model": answer}
    if streams:
        whole["content"] = {"text/event-stream": {"schema": _EVENT}}
    codes = _ERRORS if has_body else {code: _ERRORS[code] for code in (401, 404, 503)}
    return {200: whole, **{code: {"model": ErrorAnswer, "description": told} for code, told in codes.items()}}
