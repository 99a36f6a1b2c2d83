"""A model folder without weights, for the fake engine: a byte-level tokenizer of 260-odd tokens and a chat template."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|start|>", "<|end|>", "<|error|>")
"""`<|error|>` in a prompt makes the fake engine fail that request."""

_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('this model knows no tools') }}{% endif %}"
    "<|start|>{{ message.role }}: {{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>{% endif %}"
)
_MERGES = (("D", "E"), ("DE", "F"))
"""`DEF` is one token, so that a stop string can begin or end inside a token."""


def write_tiny_model(folder: Path, *, template: str | None = _TEMPLATE) -> Path:
    """Write the folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *("".join(pair) for pair in _MERGES)]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=list(_MERGES)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    backend.save(str(folder / "tokenizer.json"))
    settings: dict[str, object] = {"eos_token": "<|end|>"}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": len(tokens) + 1}))
    return folder


FIRST_SPECIAL_ID = 258
VOCAB_SIZE = 320
"""Padded, as real models are."""
ERROR_TOKEN_ID = FIRST_SPECIAL_ID + 2
END_TOKEN_ID = FIRST_SPECIAL_ID + 1
