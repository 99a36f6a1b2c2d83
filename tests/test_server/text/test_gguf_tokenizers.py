"""Tokenizers of GGUF files against the library that their models were trained with, and the rules that split words."""

import inspect
import io
import json
import logging
import random
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaTokenizerFast

from forebay_server.errors import ExitCode, StartupError
from forebay_server.text.gguf_tokenizer import tokenizer_from_gguf
from forebay_server.text.tokenizer import Tokenizer as OurTokenizer
from forebay_server.weights.gguf_header import read_gguf_header

CORPUS = inspect.getsource(logging) + " naïve café 漢字 the quick brown fox\n"
TEXTS = [
    "Hello world",
    " leading and  double spaces ",
    "",
    "a\n\nb\tc",
    "naïve café 漢字 🙂 ﬁ",
    "logging.getLogger(__name__).warning('x')",
    "the thethe the",
    "▁ is a mark of its own",
    "0123456789 3.14",
]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def train(folder: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A small BPE as Llama 2, Mistral and Gemma have it."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
        **options,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write_header(path: Path, tokens: list[str], kinds: list[int], architecture: str = "llama", **values: Any) -> Path:
    """A GGUF file that has a tokenizer and no weights."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for key, value in values.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def as_gguf(
    model: sentencepiece.SentencePieceProcessor, path: Path, architecture: str = "llama", **values: Any
) -> OurTokenizer:
    """The tokenizer as a converter writes it, read by us."""
    tokens, kinds = [], []
    for i in range(model.GetPieceSize()):
        tokens.append(model.IdToPiece(i))
        if model.IsUnknown(i):
            kinds.append(UNKNOWN)
        elif model.IsControl(i):
            kinds.append(CONTROL)
        elif model.IsByte(i):
            kinds.append(BYTE)
        else:
            kinds.append(USER_DEFINED if tokens[-1] in MARKED else NORMAL)
    scores = [float(model.GetScore(i)) for i in range(model.GetPieceSize())]
    defaults = {"model": "llama", "scores": scores, "bos_token_id": 1, "eos_token_id": 2}
    return tokenizer_from_gguf(read_gguf_header(write_header(path, tokens, kinds, architecture, **defaults | values)))


MARKED = ("<|user|>", "<|end|>")


@pytest.mark.parametrize("adds_prefix", [True, False])
def test_bpe_of_sentencepiece_gives_its_tokens_and_text(tmp_path: Path, adds_prefix: bool) -> None:
    model = train(tmp_path, add_dummy_prefix=adds_prefix)
    ours = as_gguf(model, tmp_path / "x.gguf", add_space_prefix=adds_prefix)
    letters = [*sorted(set(CORPUS)), "🙂", "é", "\x00", "\u2028"]
    choose = random.Random(3)
    made = ["".join(choose.choices(letters, k=choose.randrange(1, 40))) for _ in range(300)]
    for text in [*TEXTS, *made]:
        ids = model.Encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids, repr(text)
        assert ours.encode(text) == [1, *ids]
        assert ours.decode(ids) == model.Decode(ids)


def test_it_tokenizes_like_transformers(tmp_path: Path) -> None:
    """But for spaces behind control tokens, where transformers leaves out the one that SentencePiece adds."""
    model = train(tmp_path)
    ours = as_gguf(model, tmp_path / "x.gguf")
    theirs = LlamaTokenizerFast.from_pretrained(str(tmp_path), legacy=True)
    for text in ["Hello world", "two  spaces 🙂", "</s>Hello</s>again", "<s>x"]:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text


def test_control_tokens_are_found_and_mean_nothing_in_ordinary_text(tmp_path: Path) -> None:
    model = train(tmp_path)
    ours = as_gguf(model, tmp_path / "x.gguf")
    assert ours.encode("</s>", add_special_tokens=False) == [2]
    assert 2 not in ours.encode_ordinary("a</s>b")
    assert ours.decode(ours.encode_ordinary("a</s>b")) == "a</s>b"
    assert ours.eos_token_ids == (2,)
    assert (ours.bos_token, ours.eos_token) == ("<s>", "</s>")


def test_user_defined_tokens_are_found_before_the_merges(tmp_path: Path) -> None:
    model = train(tmp_path, user_defined_symbols=list(MARKED))
    ours = as_gguf(model, tmp_path / "x.gguf", add_space_prefix=False)
    ids = ours.encode("<|user|>the<|end|>", add_special_tokens=False)
    assert ids[0] == model.PieceToId("<|user|>")
    assert ids[-1] == model.PieceToId("<|end|>")
    assert ours.decode(ids) == "<|user|>the<|end|>"


def test_phi3_control_tokens_swallow_the_white_space_behind_them(tmp_path: Path) -> None:
    """As its tokenizer.json says (`rstrip`), which GGUF has no field for."""
    model = train(tmp_path, control_symbols=list(MARKED))
    texts = ("<|user|>\nthe<|end|>\n", "<s>\nthe")
    phi3 = as_gguf(model, tmp_path / "phi3.gguf", "phi3")
    llama = as_gguf(model, tmp_path / "llama.gguf", "llama")
    user = model.PieceToId("<|user|>")
    word = llama.encode("the", add_special_tokens=False)
    end = model.PieceToId("<|end|>")
    assert phi3.encode(texts[0], add_special_tokens=False) == [user, *word, end]
    assert llama.encode(texts[0], add_special_tokens=False) != [user, *word, end]
    assert phi3.encode(texts[1], add_special_tokens=False) == llama.encode(texts[1], add_special_tokens=False)
    assert end in phi3.eos_token_ids


@pytest.mark.parametrize(
    ("values", "exit_code", "words"),
    [
        ({"model": "t5"}, ExitCode.BAD_CONFIGURATION, "'t5'"),
        ({"model": "llama"}, ExitCode.CORRUPT_WEIGHTS, "tokenizer.ggml.scores"),
        ({"model": "llama", "scores": [0.5]}, ExitCode.CORRUPT_WEIGHTS, "tokenizer.ggml.scores"),
        ({"model": "gpt2", "merges": ["a b"], "pre": "unheard-of"}, ExitCode.BAD_CONFIGURATION, "'unheard-of'"),
        ({"model": "gpt2", "merges": ["a x"]}, ExitCode.CORRUPT_WEIGHTS, "'a x'"),
        ({"model": "gpt2"}, ExitCode.CORRUPT_WEIGHTS, "tokenizer.ggml.merges"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, values: dict[str, Any], exit_code: ExitCode, words: str) -> None:
    path = write_header(tmp_path / "x.gguf", ["<unk>", "a", "b", "ab"], [UNKNOWN, NORMAL, NORMAL, NORMAL], **values)
    with pytest.raises(StartupError, match=words) as caught:
        tokenizer_from_gguf(read_gguf_header(path))
    assert caught.value.exit_code == exit_code


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "I'll pay 1234", ["I", "'ll", " pay", " 1234"]),
        ("smollm", "I pay 12", ["I", " pay", " ", "1", "2"]),
        ("llama-bpe", "I'LL pay 12345\n\nok", ["I", "'LL", " pay", " ", "123", "45", "\n\n", "ok"]),
        ("dbrx", "12345", ["123", "45"]),
        ("qwen2", "I'LL pay 123", ["I", "'LL", " pay", " ", "1", "2", "3"]),
        ("tekken", "helloWorld 12 a/b", ["hello", "World", " ", "1", "2", " a", "/b"]),
        ("gpt-4o", "helloWorld's 1234", ["hello", "World's", " ", "123", "4"]),
    ],
)
def test_texts_are_split_into_words_by_the_rule_that_is_named(
    tmp_path: Path, pre: str, text: str, words: list[str]
) -> None:
    """No merge crosses a word, so a vocabulary that could merge everything stops at their ends."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n\n\n"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator([text, *words] * 3, trainer)
    path = tmp_path / "x.gguf"
    ids = trained.get_vocab()
    tokens = sorted(ids, key=lambda token: ids[token])
    merges = [" ".join(pair) for pair in trained_merges(trained)]
    write_header(path, tokens, [NORMAL] * len(tokens), model="gpt2", pre=pre, merges=merges)
    ours = tokenizer_from_gguf(read_gguf_header(path))
    assert len(trained.encode(text).ids) < len(words), "the vocabulary could merge more"
    assert [ours.decode([token]) for token in ours.encode(text)] == words


def trained_merges(tokenizer: Tokenizer) -> list[list[str]]:
    merges: list[list[str]] = json.loads(tokenizer.to_str())["model"]["merges"]
    return merges
