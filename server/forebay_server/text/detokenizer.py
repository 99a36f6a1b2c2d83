"""Token ids to text, one by one: what comes out is always whole characters, at most 3 bytes late."""

import codecs
from typing import Protocol

from forebay_server.text.token_bytes import TokenBytes

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class _HasTokenBytes(Protocol):
    @property
    def token_bytes(self) -> TokenBytes: ...
    @property
    def special_token_ids(self) -> frozenset[int]: ...


class Detokenizer:
    """The text of one choice so far; bytes that cannot be UTF-8 become U+FFFD as soon as that is certain.

    Args:
        tokenizer: whose tokens they are.
        skip_special_tokens: control tokens have no text.
        shown_token_ids: control tokens that have one all the same.
    """

    def __init__(
        self,
        tokenizer: _HasTokenBytes,
        *,
        skip_special_tokens: bool = True,
        shown_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._bytes_by_id = tokenizer.token_bytes.by_id
        self._skipped_ids = tokenizer.special_token_ids - shown_token_ids if skip_special_tokens else frozenset[int]()
        self._drop_space = tokenizer.token_bytes.drops_first_space
        self._utf8 = _Utf8Decoder(errors="replace")

    def push(self, token_id: int) -> str:
        """Add one token and return the characters that are now whole (often none, for parts of an emoji)."""
        if token_id in self._skipped_ids or token_id >= len(self._bytes_by_id):
            return ""
        piece = self._bytes_by_id[token_id]
        if self._drop_space and piece:
            self._drop_space = False
            piece = piece.removeprefix(b" ")
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """The end: an unfinished character becomes U+FFFD."""
        return self._utf8.decode(b"", final=True)
