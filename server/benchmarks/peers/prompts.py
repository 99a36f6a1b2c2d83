"""The prompts of the comparison: random token ids, or the texts of a file."""

import random
from collections.abc import Sequence
from pathlib import Path

from forebay_server.evaluation.prompts import PromptTokenizer, read_prompts
from forebay_server.text.model_path import locate_model
from forebay_server.text.model_text import load_model_text


class Prompts:
    """Gives every prompt once: whoever remembers prompts gains nothing.

    Args:
        seed: of everything that is random.
        num_tokens: of a random prompt; longer texts are cut there.
        vocab_size: random token ids are below it.
        texts: token ids, used in turn, each behind a random token of its own; None: all is random.
    """

    def __init__(self, seed: int, num_tokens: int, vocab_size: int, texts: Sequence[Sequence[int]] | None) -> None:
        self._generator = random.Random(seed)
        self._num_tokens = num_tokens
        self._vocab_size = vocab_size
        self._texts = None if texts is None else [list(text[: num_tokens - 1]) for text in texts]
        self._num_given = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self._num_tokens if self._texts is None else 1 + max(map(len, self._texts))

    def take(self, number: int) -> list[list[int]]:
        """The next prompts."""
        return [self._random(self._num_tokens) if self._texts is None else self._next_text() for _ in range(number)]

    def pair(self) -> tuple[list[list[int]], list[list[int]]]:
        """Two prompts of the same length."""
        (first,) = self.take(1)
        (second,) = self.take(1) if self._texts is None else [[*self._random(1), *first[1:]]]
        return [first], [second]

    def _random(self, number: int) -> list[int]:
        return [self._generator.randrange(self._vocab_size) for _ in range(number)]

    def _next_text(self) -> list[int]:
        texts = self._texts or [[]]
        text = texts[self._num_given % len(texts)]
        self._num_given += 1
        return [*self._random(1), *text]


def read_texts(path: str, model: Path, max_tokens: int) -> list[list[int]]:
    """The token ids of a file's prompts, as `forebay eval` reads them.

    Args:
        path: a .jsonl file.
        model: whose tokenizer and chat template are used.
        max_tokens: longer prompts are cut there.

    Raises:
        PromptFileError: the file cannot be used.
    """
    text = load_model_text(locate_model(str(model)))
    chat = text.chat_template
    encode_chat = None if chat is None else lambda messages: chat.prompt_token_ids(messages)
    return read_prompts(path, PromptTokenizer(text.tokenizer.encode, encode_chat), max_tokens)
