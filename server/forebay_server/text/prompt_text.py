"""The text of a prompt, for echoing it: what its tokens say, and where in it each begins."""

from collections.abc import Sequence
from dataclasses import dataclass

from forebay_server.text.detokenizer import Detokenizer
from forebay_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptText:
    """One prompt."""

    text: str
    token_ids: Sequence[int]
    offsets: list[int]
    """For each token: characters of the text before it."""

    @classmethod
    def of(cls, token_ids: Sequence[int], tokenizer: Tokenizer, *, skip_special_tokens: bool) -> "PromptText":
        """Detokenize a prompt as an answer would be."""
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        pieces: list[str] = []
        offsets: list[int] = []
        num_characters = 0
        for token_id in token_ids:
            offsets.append(num_characters)
            pieces.append(detokenizer.push(token_id))
            num_characters += len(pieces[-1])
        return cls("".join(pieces) + detokenizer.flush(), token_ids, offsets)
