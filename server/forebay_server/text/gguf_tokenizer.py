"""Build the tokenizer that a GGUF file describes: byte-level BPE with the splitting rule named by `tokenizer.ggml.pre`.

Sources: the key names of the GGUF specification; the splitting rules as the models' `tokenizer.json` state them.
"""

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from forebay_server.errors import ExitCode, StartupError
from forebay_server.text.token_bytes import byte_level_table
from forebay_server.text.tokenizer import Tokenizer
from forebay_server.weights.gguf_header import GgufHeader

_CONTROL, _USER_DEFINED = 3, 4
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>")
"""Control tokens that end an answer whatever the metadata says; converters often forget one of them."""


def tokenizer_from_gguf(header: GgufHeader) -> Tokenizer:
    """The tokenizer of the file.

    Raises:
        StartupError: BAD_CONFIGURATION for a kind that cannot be built, CORRUPT_WEIGHTS when parts are missing.
    """
    model, pre = header.metadata.get("tokenizer.ggml.model"), header.metadata.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2":
        raise _unsupported(header, f"tokenizer.ggml.model {model!r}; only byte-level BPE ('gpt2') can be read")
    tokens = _strings(header, "tokenizer.ggml.tokens")
    kinds = header.metadata.get("tokenizer.ggml.token_type")
    kind_by_id = dict(enumerate(kinds)) if isinstance(kinds, list) else {}
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [_merge(header, merge, vocab) for merge in _strings(header, "tokenizer.ggml.merges")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in ("llama-bpe", "llama3", "llama-v3")))
    backend.pre_tokenizer = _pre_tokenizer(header, pre)
    backend.decoder = decoders.ByteLevel()
    control = {token: i for i, token in enumerate(tokens) if kind_by_id.get(i) == _CONTROL}
    user_defined = {token: i for i, token in enumerate(tokens) if kind_by_id.get(i) == _USER_DEFINED}
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    backend.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    bos_token_id = _token_id(header, "bos", len(tokens))
    eos_token_ids = _eos_token_ids(header, control, len(tokens))
    adds_bos = header.metadata.get("tokenizer.ggml.add_bos_token", pre in ("llama-bpe", "llama3", "llama-v3"))
    return Tokenizer(
        backend,
        byte_level_table(vocab, {i: token for token, i in (control | user_defined).items()}),
        special_tokens=control,
        bos_token_id=bos_token_id if adds_bos else None,
        eos_token_ids=eos_token_ids,
        bos_token="" if bos_token_id is None else tokens[bos_token_id],
        eos_token=tokens[eos_token_ids[0]] if eos_token_ids else "",
    )


def chat_template_source(header: GgufHeader) -> str | None:
    """The Jinja template that the file carries."""
    template = header.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def _pre_tokenizer(header: GgufHeader, pre: object) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in ("gpt-2", "default"):
        return words
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if pre in ("llama-bpe", "llama3", "llama-v3"):
        split = pre_tokenizers.Split(Regex(_LLAMA3_WORDS), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise _unsupported(header, f"tokenizer.ggml.pre {pre!r}; gpt-2, smollm and llama-bpe can be read")


def _eos_token_ids(header: GgufHeader, control: dict[str, int], vocab_size: int) -> tuple[int, ...]:
    named = [_token_id(header, name, vocab_size) for name in ("eos", "eot", "eom")]
    known = [control.get(token) for token in _END_TOKENS]
    return tuple(dict.fromkeys(token_id for token_id in (*named, *known) if token_id is not None))


def _token_id(header: GgufHeader, name: str, vocab_size: int) -> int | None:
    token_id = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return token_id if isinstance(token_id, int) and 0 <= token_id < vocab_size else None


def _merge(header: GgufHeader, merge: str, vocab: dict[str, int]) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space or not {left, right, left + right} <= vocab.keys():
        raise StartupError(
            ExitCode.CORRUPT_WEIGHTS,
            "CorruptTokenizer",
            f"{header.path}: the BPE merge {merge!r} names tokens that the vocabulary lacks",
        )
    return left, right


def _strings(header: GgufHeader, key: str) -> list[str]:
    value = header.metadata.get(key)
    if not isinstance(value, list) or not value:
        raise StartupError(ExitCode.CORRUPT_WEIGHTS, "CorruptTokenizer", f"{header.path}: {key} is missing")
    return [str(item) for item in value]


def _unsupported(header: GgufHeader, what: str) -> StartupError:
    return StartupError(ExitCode.BAD_CONFIGURATION, "UnsupportedTokenizer", f"{header.path} has {what}")
