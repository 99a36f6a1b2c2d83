"""Build the tokenizer that a GGUF file describes: `tokenizer.ggml.model` says of which family.

Byte-level BPE (`gpt2`) and SentencePiece's BPE (`llama`: Llama 2, Mistral, Gemma, Phi 3) can be read. Source: the key
names of the GGUF specification.
"""

from tokenizers import AddedToken, processors

from forebay_server.errors import ExitCode, StartupError
from forebay_server.text.gguf_byte_level import byte_level_backend
from forebay_server.text.gguf_sentencepiece import adds_space_prefix, sentencepiece_backend
from forebay_server.text.gguf_vocabulary import GgufVocabulary, TokenKind
from forebay_server.text.token_bytes import SPACE_MARK, byte_level_table, sentencepiece_table
from forebay_server.text.tokenizer import Tokenizer
from forebay_server.weights.gguf_header import GgufHeader

_ADDS_BOS = ("llama-bpe", "llama3", "llama-v3")
"""Splitting rules of byte-level models that begin a prompt with a token of their own unless the file says otherwise."""
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>")
"""Control tokens that end an answer whatever the metadata says; converters often forget one of them."""


def tokenizer_from_gguf(header: GgufHeader) -> Tokenizer:
    """The tokenizer of the file.

    Raises:
        StartupError: BAD_CONFIGURATION for a kind that cannot be built, CORRUPT_WEIGHTS when parts are missing.
    """
    model = header.metadata.get("tokenizer.ggml.model")
    vocabulary = GgufVocabulary.of(header)
    control = vocabulary.texts(TokenKind.CONTROL)
    user_defined = vocabulary.texts(TokenKind.USER_DEFINED)
    if model == "gpt2":
        pre = header.metadata.get("tokenizer.ggml.pre", "gpt-2")
        backend = byte_level_backend(header, vocabulary)
        table = byte_level_table(vocabulary.ids, {i: token for token, i in (control | user_defined).items()})
        adds_bos = pre in _ADDS_BOS
    elif model == "llama":
        backend = sentencepiece_backend(header, vocabulary)
        # user-defined tokens are runs of spaces, written with the mark of a space; they are found by merging
        user_defined = {token: i for token, i in user_defined.items() if SPACE_MARK not in token}
        table = sentencepiece_table(
            vocabulary.ids,
            {i: token for token, i in (control | user_defined).items()},
            drops_first_space=adds_space_prefix(header),
        )
        adds_bos = True
    else:
        raise StartupError(
            ExitCode.BAD_CONFIGURATION,
            "UnsupportedTokenizer",
            f"{header.path} has tokenizer.ggml.model {model!r}; 'gpt2' (byte-level BPE) and 'llama' (SentencePiece's "
            "BPE) can be read",
        )
    strips = model == "llama" and header.metadata.get("general.architecture") == "phi3"
    backend.add_special_tokens([_special(token, strips=strips) for token in control])
    backend.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    bos_token_id = _token_id(header, "bos", len(vocabulary.tokens))
    eos_token_ids = _eos_token_ids(header, control, len(vocabulary.tokens))
    if not header.metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        first_token_id = None
    elif (first_token_id := bos_token_id) is not None:  # for who saves the definition; `encode` adds it by itself
        bos = vocabulary.tokens[first_token_id]
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, first_token_id)]
        )
    return Tokenizer(
        backend,
        table,
        special_tokens=control,
        bos_token_id=first_token_id,
        eos_token_ids=eos_token_ids,
        bos_token="" if bos_token_id is None else vocabulary.tokens[bos_token_id],
        eos_token=vocabulary.tokens[eos_token_ids[0]] if eos_token_ids else "",
    )


def chat_template_source(header: GgufHeader) -> str | None:
    """The Jinja template that the file carries."""
    template = header.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def _special(token: str, *, strips: bool) -> AddedToken:
    """A control token; those of Phi 3 swallow the white space that follows, as its chat template expects."""
    keeps = token in ("<unk>", "<s>", "<|endoftext|>")
    return AddedToken(token, special=True, normalized=False, rstrip=strips and not keeps)


def _eos_token_ids(header: GgufHeader, control: dict[str, int], vocab_size: int) -> tuple[int, ...]:
    named = [_token_id(header, name, vocab_size) for name in ("eos", "eot", "eom")]
    known = [control.get(token) for token in _END_TOKENS]
    return tuple(dict.fromkeys(token_id for token_id in (*named, *known) if token_id is not None))


def _token_id(header: GgufHeader, name: str, vocab_size: int) -> int | None:
    token_id = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return token_id if isinstance(token_id, int) and 0 <= token_id < vocab_size else None
