"""Text to token ids and back, for the API process; wraps the `tokenizers` library."""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property

import tokenizers

from forebay_server.errors import InvalidRequestError
from forebay_server.text.detokenizer import Detokenizer
from forebay_server.text.token_bytes import TokenBytes


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads.

    Args:
        backend: the library's tokenizer.
        token_bytes: what each id stands for.
        special_tokens: text -> id of the control tokens.
        bos_token_id: put once before a plain prompt; None: the model wants none.
        eos_token_ids: the tokens that end an answer.
        bos_token: its text, for the chat template, also where a plain prompt gets none.
        eos_token: the text of the end token, for the chat template.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        token_bytes: TokenBytes,
        *,
        special_tokens: Mapping[str, int],
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        bos_token: str,
        eos_token: str,
    ) -> None:
        self._backend = backend
        self._bos_token_id = bos_token_id
        self.token_bytes = token_bytes
        self.special_tokens = dict(special_tokens)
        self.special_token_ids = frozenset(special_tokens.values())
        self.eos_token_ids = eos_token_ids
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.longest_token_bytes = max(map(len, token_bytes.by_id), default=1)
        texts = sorted(self.special_tokens, key=len, reverse=True)
        self.special_token_pattern = re.compile("(" + "|".join(map(re.escape, texts)) + ")") if texts else None

    @property
    def vocab_size(self) -> int:
        """Ids are below this; the model's own vocabulary may be padded to more."""
        return len(self.token_bytes.by_id)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Text to ids; control tokens written out in the text become control tokens.

        Args:
            text: any text.
            add_special_tokens: begin with the model's begin-of-sequence token, if it wants one, unless the
                text already does.

        Raises:
            InvalidRequestError: the text is no Unicode.
        """
        ids = _encode(self._backend, text)
        if add_special_tokens and self._bos_token_id is not None and ids[:1] != [self._bos_token_id]:
            ids.insert(0, self._bos_token_id)
        return ids

    def encode_ordinary(self, text: str) -> list[int]:
        """Text to ids, control tokens written out in it being mere text."""
        return _encode(self._plain_backend, text)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Ids to text, the same as what a stream of them would say."""
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return "".join([detokenizer.push(token_id) for token_id in token_ids]) + detokenizer.flush()

    def bytes_of(self, token_id: int) -> bytes:
        """What one token stands for; nothing for an id of the padding."""
        table = self.token_bytes.by_id
        return table[token_id] if token_id < len(table) else b""

    def text_of(self, token_id: int) -> str:
        """One token by itself, for log-probabilities; a part of a character shows as U+FFFD."""
        return self.bytes_of(token_id).decode("utf-8", "replace")

    def definition(self) -> str:
        """The tokenizer as `tokenizer.json` has it."""
        text: str = self._backend.to_str(pretty=True)
        return text

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        plain = tokenizers.Tokenizer.from_str(self._backend.to_str())
        plain.encode_special_tokens = True
        return plain


def _encode(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    try:
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    except TypeError as error:  # JSON may hold half of a surrogate pair, which has no UTF-8
        raise InvalidRequestError("the text is not valid Unicode: it has a lone surrogate") from error
    return ids
