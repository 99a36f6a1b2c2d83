"""From a request body to what the engine and the text machine need: defaults, refusals, the context's length. Pure."""

import secrets
from collections.abc import Sequence
from typing import TypeVar

from forebay_server.api.generation import TextOptions
from forebay_server.api.openai_types import EmbeddingBody, GenerationBody
from forebay_server.api.responses_types import ResponsesBody
from forebay_server.api.service import ServedModel
from forebay_server.errors import InvalidRequestError
from forebay_server.sampling_params import SamplingParams

_Value = TypeVar("_Value")


def refuse_what_is_missing(body: GenerationBody | EmbeddingBody | ResponsesBody) -> None:
    """Refuse fields that ask for something this version does not do.

    Raises:
        InvalidRequestError: naming the first such field.
    """
    for name, field in body.not_offered.items():
        if not field.allows((body.model_extra or {}).get(name)):
            raise InvalidRequestError(
                f"{name} is not offered by this server; {field.instead}", param=name, code="unsupported_parameter"
            )
    if isinstance(body, GenerationBody) and (body.best_of or 1) > (body.n or 1):
        raise InvalidRequestError("best_of is more than n; ask for n choices and pick one", param="best_of")
    if isinstance(body, GenerationBody) and body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options is only for stream: true", param="stream_options")


def sampling_params(
    body: GenerationBody,
    model: ServedModel,
    *,
    num_prompt_tokens: int,
    max_tokens: int | None,
    default_max_tokens: int | None,
    max_tokens_field: str,
    prompt_field: str,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """How to sample for one prompt: as the request says, else as the model's makers do, else as OpenAI does.

    Args:
        body: the request.
        model: for its end tokens and the room in its context.
        num_prompt_tokens: of this prompt.
        max_tokens: as the client gave it.
        default_max_tokens: otherwise; None: as many as there is room for. Cut to the room.
        max_tokens_field: how the client calls it.
        prompt_field: and the prompt.
        logprobs: alternatives at each position; None: no log-probabilities.
        prompt_logprobs: the same for the prompt.

    Raises:
        InvalidRequestError: prompt and answer do not fit in the context, or a number is out of range.
    """
    room = model.context_tokens - num_prompt_tokens
    wanted = max_tokens if max_tokens is not None else 1
    if wanted > room:
        raise InvalidRequestError(
            f"the context holds {model.context_tokens} tokens; the prompt has {num_prompt_tokens} and {wanted} "
            f"{'are' if wanted > 1 else 'is'} wanted for the answer, {num_prompt_tokens + wanted} together",
            param=max_tokens_field if max_tokens is not None and room > 0 else prompt_field,
            code="context_length_exceeded",
        )
    if max_tokens is None:
        max_tokens = room if default_max_tokens is None else min(default_max_tokens, room)
    defaults = model.text.sampling_defaults
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_given(body.temperature, defaults.temperature),
        top_p=_given(body.top_p, defaults.top_p),
        top_k=max(0, _given(body.top_k, defaults.top_k)),
        min_p=_given(body.min_p, defaults.min_p),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=_given(body.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_logit_bias(body, model),
        allowed_token_ids=_known_ids(body.allowed_token_ids, model, "allowed_token_ids"),
        bad_words=_bad_words(body.bad_words or (), model),
        seed=body.seed if body.seed is not None else secrets.randbits(63),
        stop_token_ids=_known_ids(body.stop_token_ids, model, "stop_token_ids"),
        eos_token_ids=model.text.tokenizer.eos_token_ids,
        ignore_eos=bool(body.ignore_eos),
        min_tokens=body.min_tokens or 0,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _known_ids(token_ids: Sequence[int] | None, model: ServedModel, param: str) -> tuple[int, ...]:
    """Each id once; all of them the model's."""
    check_token_ids(token_ids or (), model, param)
    return tuple(dict.fromkeys(token_ids or ()))


def _logit_bias(body: GenerationBody, model: ServedModel) -> dict[int, float]:
    """By token id, which JSON can only write as text."""
    biases: dict[int, float] = {}
    for text, bias in (body.logit_bias or {}).items():
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise InvalidRequestError(f"logit_bias has the key {text[:40]!r}; keys are token ids", param="logit_bias")
        biases[int(text)] = bias
    check_token_ids(list(biases), model, "logit_bias")
    return biases


def _bad_words(words: Sequence[str], model: ServedModel) -> tuple[tuple[int, ...], ...]:
    """The token sequences of each word, at the start of a text and after a space."""
    encode = model.text.tokenizer.encode_ordinary
    sequences = [tuple(encode(text)) for word in words for text in (word, " " + word.lstrip())]
    return tuple(dict.fromkeys(sequence for sequence in sequences if sequence))


def text_options(body: GenerationBody) -> TextOptions:
    """How tokens become text."""
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return TextOptions(
        stop=stop,
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=_given(body.skip_special_tokens, True),
    )


def check_token_ids(token_ids: Sequence[int], model: ServedModel, param: str) -> None:
    """Refuse ids that the model does not have.

    Raises:
        InvalidRequestError: naming the first one.
    """
    outside = next((token_id for token_id in token_ids if not 0 <= token_id < model.engine.vocab_size), None)
    if outside is not None:
        raise InvalidRequestError(
            f"token id {outside} is outside the vocabulary; ids are 0 to {model.engine.vocab_size - 1}", param=param
        )


def check_text_length(text_bytes: int, model: ServedModel, param: str) -> None:
    """Refuse a text that cannot fit whatever its tokens are, without tokenizing it.

    Raises:
        InvalidRequestError: with the least number of tokens that it must have.
    """
    least = text_bytes // model.text.tokenizer.longest_token_bytes
    if least >= model.context_tokens:
        raise InvalidRequestError(
            f"the context holds {model.context_tokens} tokens; the prompt has at least {least}",
            param=param,
            code="context_length_exceeded",
        )


def _given(value: _Value | None, default: _Value) -> _Value:
    return default if value is None else value
