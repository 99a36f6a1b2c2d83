"""From the prompts of a body to token ids: kinds, limits, truncation. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from forebay_server.api.openai_types import Truncated
from forebay_server.api.request_params import check_text_length, check_token_ids
from forebay_server.api.service import ServedModel
from forebay_server.errors import InvalidRequestError

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class Truncation:
    """Keep at most so many tokens of a prompt, from its end (`left` is cut) or from its beginning."""

    num_tokens: int
    side: Literal["left", "right"] = "left"

    @classmethod
    def of(cls, body: Truncated, longest: int) -> "Truncation | None":
        """What a body asks for.

        Args:
            body: with `truncate_prompt_tokens`; -1 means as many tokens as there is room for.
            longest: that many.

        Raises:
            InvalidRequestError: 0 tokens.
        """
        wanted = body.truncate_prompt_tokens
        if wanted is None:
            return None
        if wanted == 0:
            raise InvalidRequestError(
                "truncate_prompt_tokens is 0; it must be at least 1, or -1 for as many tokens as there is room for",
                param="truncate_prompt_tokens",
            )
        return cls(max(1, longest) if wanted == -1 else wanted, body.truncation_side or "left")

    def apply(self, token_ids: list[int]) -> list[int]:
        """The tokens that stay."""
        return token_ids[-self.num_tokens :] if self.side == "left" else token_ids[: self.num_tokens]


def prompt_list(prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]) -> list[Prompt]:
    """The prompts that a `prompt` or `input` field holds; its items are all of one kind, as the body's type says."""
    if isinstance(prompt, str):
        return [prompt]
    token_ids: list[int] = []
    prompts: list[Prompt] = []
    for item in prompt:
        if isinstance(item, int):
            token_ids.append(item)
        else:
            prompts.append(item if isinstance(item, str) else list(item))
    return prompts or [token_ids]


def prompt_token_ids(
    prompt: Prompt, model: ServedModel, *, add_special_tokens: bool, truncation: Truncation | None, param: str
) -> list[int]:
    """Token ids of one prompt, checked against the vocabulary.

    Raises:
        InvalidRequestError: it is empty, has ids that the model has not, or cannot fit.
    """
    if isinstance(prompt, str):
        if truncation is None:
            check_text_length(len(prompt), model, param)
        prompt = model.text.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
    check_token_ids(prompt, model, param)
    if not prompt:
        raise InvalidRequestError(f"the {param} is empty", param=param)
    return prompt if truncation is None else truncation.apply(prompt)
