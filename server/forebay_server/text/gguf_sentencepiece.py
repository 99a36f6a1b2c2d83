"""SentencePiece's BPE from a GGUF file: the pair whose token has the best score is merged first; bytes for the rest.

Source: Kudo and Richardson 2018, arXiv:1808.06226, and the GGUF specification's keys. The file has scores and no list
of merges: every way to cut a token in two that are tokens is one, in the order of the scores.
"""

from tokenizers import Tokenizer, decoders, models, normalizers

from forebay_server.text.gguf_vocabulary import GgufVocabulary, TokenKind, corrupt_tokenizer
from forebay_server.text.token_bytes import SPACE_MARK
from forebay_server.weights.gguf_header import GgufHeader


def adds_space_prefix(header: GgufHeader) -> bool:
    """Whether a text gets a space before its first word, which its decoding drops again."""
    return bool(header.metadata.get("tokenizer.ggml.add_space_prefix", True))


def sentencepiece_backend(header: GgufHeader, vocabulary: GgufVocabulary) -> Tokenizer:
    """The tokenizer, without control tokens.

    Raises:
        StartupError: CORRUPT_WEIGHTS, when scores are missing.
    """
    scores = header.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(vocabulary.tokens):
        raise corrupt_tokenizer(header, "tokenizer.ggml.scores has no score for each token")
    unknown = vocabulary.texts(TokenKind.UNKNOWN)
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges(vocabulary, [float(str(score)) for score in scores]),
            unk_token=next(iter(unknown), None),
            fuse_unk=True,
            byte_fallback=TokenKind.BYTE in vocabulary.kinds,
        )
    )
    spaces = normalizers.Replace(" ", SPACE_MARK)
    prepend = [normalizers.Prepend(SPACE_MARK)] if adds_space_prefix(header) else []
    backend.normalizer = normalizers.Sequence([*prepend, spaces])
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _merges(vocabulary: GgufVocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Pairs in the order in which they are merged; of equal scores the token that comes first."""
    kinds = (TokenKind.NORMAL, TokenKind.USER_DEFINED)
    pieces = {token for i, token in enumerate(vocabulary.tokens) if vocabulary.kinds[i] in kinds}
    ids = vocabulary.ids
    by_score = sorted(pieces, key=lambda token: (-scores[ids[token]], ids[token]))
    return [
        (token[:cut], token[cut:])
        for token in by_score
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]
