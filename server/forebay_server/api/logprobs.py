"""Log-probabilities as the two kinds of answers write them. JSON has no infinity: the floor is -9999."""

from collections.abc import Sequence
from typing import Any

from forebay_server.api.generation import TokenDetail
from forebay_server.text.tokenizer import Tokenizer

FLOOR = -9999.0


def chat_logprobs(details: Sequence[TokenDetail], tokenizer: Tokenizer) -> dict[str, Any]:
    """For a chat choice, or a chunk of one."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": tokenizer.text_of(token_id),
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
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(details: Sequence[TokenDetail], tokenizer: Tokenizer) -> dict[str, Any]:
    """For a completion choice, or a chunk of one; the chosen token is always among `top_logprobs`."""
    return {
        "tokens": [tokenizer.text_of(detail.token_id) for detail in details],
        "token_logprobs": [max(FLOOR, detail.logprobs.chosen) for detail in details],
        "top_logprobs": [_by_token(detail, tokenizer) for detail in details],
        "text_offset": [detail.text_offset for detail in details],
    }


def _by_token(detail: TokenDetail, tokenizer: Tokenizer) -> dict[str, float]:
    likeliest = zip(detail.logprobs.top_token_ids, detail.logprobs.top_logprobs, strict=True)
    by_token = {tokenizer.text_of(token_id): max(FLOOR, logprob) for token_id, logprob in likeliest}
    return by_token | {tokenizer.text_of(detail.token_id): max(FLOOR, detail.logprobs.chosen)}
