"""Tokenizers: round trips, the begin token exactly once, and the real model against the library's own reading."""

import json
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from forebay_server.errors import ExitCode, StartupError
from forebay_server.text.chat_template import ChatTemplate
from forebay_server.text.model_path import locate_model
from forebay_server.text.model_text import ModelText, load_model_text
from tests.fakes.tiny_model import write_tiny_model
from tests.smollm2 import smollm2_gguf

TRICKY = [
    "",
    " ",
    "Hello world",
    "  a\t\n\n b   c  ",
    "é漢🙂👩‍👩‍👧‍👦",
    "12345 3.14 ²½Ⅳ 1,000",
    "def f(x):\n    return x**2\n",
    "don't we'll I'VE",
    "\u200b\ufeff\x00\x7f",
    "a" * 500,
    "مرحبا שלום ไทย",
    "\r\n\r\n",
    "A\u030a Å ﬁ",
]


@pytest.fixture(scope="module")
def smollm2() -> ModelText:
    return load_model_text(locate_model(str(smollm2_gguf())))


@pytest.fixture(scope="module")
def smollm2_reference(tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    """As `transformers` reads the file, but with the digits apart: its GGUF reader does not know `pre = smollm`."""
    from transformers import AutoTokenizer

    path = smollm2_gguf()
    reference: tokenizers.Tokenizer = AutoTokenizer.from_pretrained(
        str(path.parent), gguf_file=path.name
    ).backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    reference.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return reference


@pytest.mark.model
def test_smollm2_tokenizes_and_decodes_like_the_reference(
    smollm2: ModelText, smollm2_reference: tokenizers.Tokenizer
) -> None:
    tokenizer = smollm2.tokenizer
    for text in [*TRICKY, "<|im_end|> and <|im_start|>user"]:
        ids = tokenizer.encode(text)
        assert ids == smollm2_reference.encode(text).ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    choose = random.Random(1)
    for _ in range(1000):
        ids = [choose.randrange(17, tokenizer.vocab_size) for _ in range(choose.randrange(1, 10))]
        assert tokenizer.decode(ids) == smollm2_reference.decode(ids)


@pytest.mark.model
def test_smollm2_knows_its_control_tokens_and_template(smollm2: ModelText) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer.eos_token_ids == (2, 0)
    assert tokenizer.encode("hi")[0] != 1, "the model wants no begin token"
    assert smollm2.chat_template is not None
    prompt = smollm2.chat_template.prompt([{"role": "user", "content": "hi"}])
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant")


def folder_with_begin_token(folder: Path) -> Path:
    """A SentencePiece-like tokenizer that puts <s> before every text."""
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "a", "b", "▁a"]
    vocab = {token: i for i, token in enumerate(tokens)}
    model = models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in ("<s>", "</s>")])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text("{}")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    return folder


def test_sentencepiece_like_tokens_become_text(tmp_path: Path) -> None:
    tokenizer = load_model_text(folder_with_begin_token(tmp_path)).tokenizer
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("a b", "ab 🙂 é", "b", "aaa  b"):
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text).ids
        assert tokenizer.decode(ids) == reference.decode(ids) == text
    assert tokenizer.eos_token_ids == (2, 9)


def test_the_begin_token_stands_exactly_once(tmp_path: Path) -> None:
    """vllm #2012: also when the text or the template already has one."""
    tokenizer = load_model_text(folder_with_begin_token(tmp_path)).tokenizer
    assert tokenizer.encode("a").count(1) == 1
    assert tokenizer.encode("<s>a").count(1) == 1
    assert tokenizer.encode("a", add_special_tokens=False).count(1) == 0
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", tokenizer)
    assert template.prompt_token_ids([{"role": "user", "content": "a"}]).count(1) == 1


def test_an_unknown_decoder_is_refused_by_name(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(StartupError, match="WordPiece") as refused:
        load_model_text(tmp_path)
    assert refused.value.exit_code == ExitCode.BAD_CONFIGURATION
