"""Byte-level BPE from a GGUF file, with the rule that splits a text into words, which `tokenizer.ggml.pre` names.

Source: the splitting rules as the models' `tokenizer.json` state them.
"""

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from forebay_server.errors import ExitCode, StartupError
from forebay_server.text.gguf_vocabulary import GgufVocabulary, corrupt_tokenizer, strings
from forebay_server.weights.gguf_header import GgufHeader

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{end}|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{end}"
)
"""Words that a change from small to capital letters ends."""
_TEKKEN = _CASED.replace("{end}", "") + rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
_GPT_4O = _CASED.replace("{end}", f"{_CONTRACTIONS}?") + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
_WORDS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": _TEKKEN,
    "gpt-4o": _GPT_4O,
}
_KEEPS_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""Where a word that is a token stays one, whatever the merges would make of it."""


def byte_level_backend(header: GgufHeader, vocabulary: GgufVocabulary) -> Tokenizer:
    """The tokenizer, without control tokens.

    Raises:
        StartupError: BAD_CONFIGURATION for a splitting rule that is not known, CORRUPT_WEIGHTS for merges of tokens
            that are not there.
    """
    pre = header.metadata.get("tokenizer.ggml.pre", "gpt-2")
    ids = vocabulary.ids
    merges = [_merge(header, merge, ids) for merge in strings(header, "tokenizer.ggml.merges")]
    backend = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=pre in _KEEPS_WHOLE_WORDS))
    backend.pre_tokenizer = _pre_tokenizer(header, pre)
    if pre in ("qwen2", "deepseek-r1-qwen"):
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(header: GgufHeader, pre: object) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in ("gpt-2", "default"):
        return words
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if isinstance(pre, str) and pre in _WORDS:
        split = pre_tokenizers.Split(Regex(_WORDS[pre]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise StartupError(
        ExitCode.BAD_CONFIGURATION,
        "UnsupportedTokenizer",
        f"{header.path} has tokenizer.ggml.pre {pre!r}; these can be read: gpt-2, smollm, {', '.join(_WORDS)}",
    )


def _merge(header: GgufHeader, merge: str, ids: dict[str, int]) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space or not {left, right, left + right} <= ids.keys():
        raise corrupt_tokenizer(header, f"the BPE merge {merge!r} names tokens that the vocabulary lacks")
    return left, right
