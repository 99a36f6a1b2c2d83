"""Log-probabilities as the two kinds of answers write them. JSON has no infinity: the floor is -9999."""

from collections.abc import Callable, Sequence
from typing import Any

from forebay_server.api.generation import TokenDetail
from forebay_server.messages import TokenLogprobs
from forebay_server.text.tokenizer import Tokenizer

FLOOR = -9999.0

TokenNamer = Callable[[int], str]


def token_namer(tokenizer: Tokenizer, *, as_ids: bool) -> TokenNamer:
    """How log-probabilities name tokens: by their text, or as `token_id:7`."""
    return (lambda token_id: f"token_id:{token_id}") if as_ids else tokenizer.text_of


def prompt_logprobs(
    details: Sequence[TokenDetail], tokenizer: Tokenizer, num_top: int
) -> list[dict[str, dict[str, object]] | None]:
    """One entry for each prompt token, by token id; None for the first, which nothing comes before."""
    return [
        None
        if detail.logprobs is None
        else {
            str(token_id): {"logprob": max(FLOOR, logprob), "decoded_token": tokenizer.text_of(token_id)}
            for token_id, logprob in _likeliest(detail.token_id, detail.logprobs, num_top).items()
        }
        for detail in details
    ]


def chat_logprobs(details: Sequence[TokenDetail], tokenizer: Tokenizer, name: TokenNamer) -> dict[str, Any]:
    """For a chat choice, or a chunk of one."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": name(token_id),
            "logprob": max(FLOOR, logprob),
            "bytes": list(tokenizer.bytes_of(token_id)),
        }

    content = [
        {
            **entry(detail.token_id, detail.logprobs.chosen),
            "top_logprobs": [
                entry(token_id, logprob)
                for token_id, logprob in zip(detail.logprobs.top_token_ids, detail.logprobs.top_logprobs, strict=True)
            ],
        }
        for detail in details
        if detail.logprobs is not None
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(details: Sequence[TokenDetail], name: TokenNamer, num_top: int) -> dict[str, Any]:
    """For a completion choice, or a chunk of one; the chosen token is always among `top_logprobs`.

    The first token of an echoed prompt has none.
    """
    return {
        "tokens": [name(detail.token_id) for detail in details],
        "token_logprobs": [
            None if detail.logprobs is None else max(FLOOR, detail.logprobs.chosen) for detail in details
        ],
        "top_logprobs": [
            None
            if detail.logprobs is None
            else {
                name(token_id): max(FLOOR, logprob)
                for token_id, logprob in _likeliest(detail.token_id, detail.logprobs, num_top).items()
            }
            for detail in details
        ],
        "text_offset": [detail.text_offset for detail in details],
    }


def _likeliest(token_id: int, logprobs: TokenLogprobs, num_top: int) -> dict[int, float]:
    """The likeliest tokens and the one that is there."""
    likeliest = zip(logprobs.top_token_ids[:num_top], logprobs.top_logprobs[:num_top], strict=True)
    return dict(likeliest) | {token_id: logprobs.chosen}
