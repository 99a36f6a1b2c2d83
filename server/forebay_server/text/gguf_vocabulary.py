"""The vocabulary of a GGUF file: every token with its kind and score, and the errors for parts that are missing."""

from dataclasses import dataclass
from enum import IntEnum

from forebay_server.errors import ExitCode, StartupError
from forebay_server.weights.gguf_header import GgufHeader


class TokenKind(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Tokens by id."""

    tokens: list[str]
    kinds: list[int]
    """A `TokenKind` each; normal where the file says nothing."""
    ids: dict[str, int]
    """Token -> id."""

    @staticmethod
    def of(header: GgufHeader) -> "GgufVocabulary":
        """Read it.

        Raises:
            StartupError: CORRUPT_WEIGHTS, when it is missing.
        """
        tokens = strings(header, "tokenizer.ggml.tokens")
        kinds = header.metadata.get("tokenizer.ggml.token_type")
        known = (
            [kind if isinstance(kind, int) else TokenKind.NORMAL for kind in kinds] if isinstance(kinds, list) else []
        )
        known += [TokenKind.NORMAL] * (len(tokens) - len(known))
        return GgufVocabulary(tokens, known, {token: token_id for token_id, token in enumerate(tokens)})

    def texts(self, kind: TokenKind) -> dict[str, int]:
        """The tokens of one kind: text -> id."""
        return {token: i for i, token in enumerate(self.tokens) if self.kinds[i] == kind}


def strings(header: GgufHeader, key: str) -> list[str]:
    """A list of texts that must be there.

    Raises:
        StartupError: CORRUPT_WEIGHTS, when it is not.
    """
    value = header.metadata.get(key)
    if not isinstance(value, list) or not value:
        raise corrupt_tokenizer(header, f"{key} is missing")
    return [str(item) for item in value]


def corrupt_tokenizer(header: GgufHeader, what: str) -> StartupError:
    """The error for a tokenizer that cannot be what the file says."""
    return StartupError(ExitCode.CORRUPT_WEIGHTS, "CorruptTokenizer", f"{header.path}: {what}")
