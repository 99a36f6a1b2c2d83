"""Which bytes each token stands for: a table, so that detokenizing costs one look-up a token whatever came before.

Two families of decoders are known, told apart by the `decoder` of a Hugging Face `tokenizer.json`: byte-level BPE
(GPT-2 and its heirs, where 256 printable characters stand for the bytes) and SentencePiece-like ones ("▁" is a space,
"<0x0A>" a byte).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from forebay_server.errors import ExitCode, StartupError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "▁"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """The table, and what is peculiar about the first token."""

    by_id: list[bytes]
    """Empty for ids that have no token."""
    drops_first_space: bool
    """SentencePiece puts a space before the text; one is dropped from its start."""


def _byte_by_character() -> dict[str, int]:
    """The printable stand-ins of GPT-2: printable Latin-1 bytes are themselves, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def byte_level_table(vocab: Mapping[str, int], added: Mapping[int, str]) -> TokenBytes:
    """The table of a byte-level vocabulary.

    Args:
        vocab: token as the file writes it -> id.
        added: id -> text of the tokens that stand outside the byte alphabet (control tokens and the like).
    """
    byte_by_character = _byte_by_character()

    def to_bytes(token: str) -> bytes:
        try:
            return bytes([byte_by_character[character] for character in token])
        except KeyError:
            return token.encode()

    return TokenBytes(_table(vocab, added, to_bytes), drops_first_space=False)


def sentencepiece_table(vocab: Mapping[str, int], added: Mapping[int, str], *, drops_first_space: bool) -> TokenBytes:
    """The table of a SentencePiece-like vocabulary; arguments as for `byte_level_table`."""

    def to_bytes(token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE_MARK, " ").encode()

    return TokenBytes(_table(vocab, added, to_bytes), drops_first_space)


def table_for_decoder(decoder: object, vocab: Mapping[str, int], added: Mapping[int, str], where: object) -> TokenBytes:
    """Pick the table by the `decoder` of a tokenizer.json.

    Raises:
        StartupError: BAD_CONFIGURATION for a decoder of neither family.
    """
    kinds = set(_decoder_kinds(decoder))
    if "ByteLevel" in kinds:
        return byte_level_table(vocab, added)
    if kinds and kinds <= {"Sequence", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return sentencepiece_table(vocab, added, drops_first_space="Strip" in kinds or "Metaspace" in kinds)
    raise StartupError(
        ExitCode.BAD_CONFIGURATION,
        "UnsupportedTokenizer",
        f"{where} has a decoder of the kind {', '.join(sorted(kinds)) or 'none'}; "
        "byte-level BPE and SentencePiece-like decoders can be read",
    )


def _decoder_kinds(decoder: object) -> Iterable[str]:
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for part in decoder.get("decoders") or ():
            yield from _decoder_kinds(part)


def _table(vocab: Mapping[str, int], added: Mapping[int, str], to_bytes: Callable[[str], bytes]) -> list[bytes]:
    size = max(max(vocab.values(), default=-1), max(added, default=-1)) + 1
    table = [b""] * size
    for token, token_id in vocab.items():
        table[token_id] = to_bytes(token)
    for token_id, text in added.items():
        table[token_id] = text.encode()
    return table
