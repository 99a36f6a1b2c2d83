"""Everything textual of a model, from its GGUF file or Hugging Face folder: tokenizer, chat template, end tokens."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers

from forebay_server.errors import ExitCode, StartupError
from forebay_server.text.chat_template import ChatTemplate
from forebay_server.text.gguf_tokenizer import chat_template_source, tokenizer_from_gguf
from forebay_server.text.sampling_defaults import SamplingDefaults, sampling_defaults
from forebay_server.text.token_bytes import table_for_decoder
from forebay_server.text.tokenizer import Tokenizer
from forebay_server.weights.gguf_header import read_gguf_header


@dataclass(frozen=True, slots=True)
class ModelText:
    """What the API process needs of a model."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None: the model has none; only completions can be served."""
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    """For requests that do not say how to sample."""


def load_model_text(path: Path) -> ModelText:
    """Read tokenizer and template; about 0.3 s for a vocabulary of 50,000.

    Args:
        path: what `locate_model` returned.

    Raises:
        StartupError: the file is corrupt, or of a kind that cannot be read.
    """
    if path.is_dir():
        return _from_folder(path)
    header = read_gguf_header(path)
    tokenizer = tokenizer_from_gguf(header)
    return _model_text(tokenizer, chat_template_source(header))


def _model_text(tokenizer: Tokenizer, template: str | None) -> ModelText:
    return ModelText(tokenizer, ChatTemplate(template, tokenizer) if template else None)


def _from_folder(folder: Path) -> ModelText:
    definition = _read_json(folder / "tokenizer.json")
    settings = _read_json(folder / "tokenizer_config.json")
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
    except Exception as error:  # the library raises nothing narrower
        raise StartupError(
            ExitCode.CORRUPT_WEIGHTS, "CorruptTokenizer", f"{folder / 'tokenizer.json'}: {error}"
        ) from error
    added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
    special = {token.content: i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    bos_token, eos_token = _token_text(settings.get("bos_token")), _token_text(settings.get("eos_token"))
    first = backend.encode("", add_special_tokens=True).ids
    bos_token_id = first[0] if first and first[0] == backend.token_to_id(bos_token) else None
    tokenizer = Tokenizer(
        backend,
        table_for_decoder(definition.get("decoder"), backend.get_vocab(), added, folder / "tokenizer.json"),
        special_tokens=special,
        bos_token_id=bos_token_id,
        eos_token_ids=_eos_token_ids(folder, backend.token_to_id(eos_token)),
        bos_token=bos_token,
        eos_token=eos_token,
    )
    generation_config = folder / "generation_config.json"
    return replace(
        _model_text(tokenizer, _folder_template(folder, settings)),
        sampling_defaults=sampling_defaults(_read_json(generation_config), generation_config),
    )


def _eos_token_ids(folder: Path, fallback: int | None) -> tuple[int, ...]:
    """End tokens: generation_config.json knows best, then config.json, then the tokenizer."""
    for name in ("generation_config.json", "config.json"):
        ids = _read_json(folder / name).get("eos_token_id")
        if isinstance(ids, int):
            return (ids,)
        if isinstance(ids, list) and ids:
            return tuple(int(token_id) for token_id in ids)
    return () if fallback is None else (fallback,)


def _folder_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def _token_text(token: object) -> str:
    """A token in tokenizer_config.json is a string or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object, empty when the file is not there."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StartupError(ExitCode.CORRUPT_WEIGHTS, "CorruptModelFile", f"{path}: {error}") from error
    return content if isinstance(content, dict) else {}
