"""The prompts of an evaluation: the file that the user names, or the ones that come with the package. No torch."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from forebay_server.errors import ForebayError

DEFAULT_FILE = "default_prompts.jsonl"
Encode = Callable[[str], list[int]]
EncodeChat = Callable[[Sequence[Mapping[str, Any]]], list[int]]


class PromptFileError(ForebayError):
    """The file cannot be used; the message names the file, the line and what would be right."""


@dataclass(frozen=True, slots=True)
class PromptTokenizer:
    """How the model turns what a line holds into token ids."""

    encode: Encode
    encode_chat: EncodeChat | None
    """None: the model has no chat template."""


def read_prompts(path: str | None, tokenizer: PromptTokenizer, max_tokens: int) -> list[list[int]]:
    """The token ids of every prompt.

    Each line of the file is a JSON string, or an object with `prompt` (or `text`), `messages`, or `prompt_token_ids`.

    Args:
        path: a .jsonl file; None: the prompts of the package.
        tokenizer: of the model.
        max_tokens: longer prompts are cut there.

    Raises:
        PromptFileError: unreadable, without prompts, or with a line that is none.
    """
    if path is None:
        name, text = DEFAULT_FILE, files(__package__).joinpath(DEFAULT_FILE).read_text(encoding="utf-8")
    else:
        name = path
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PromptFileError(f"--prompts {path}: {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            token_ids = _token_ids(line, tokenizer, f"{name}, line {number}")[:max_tokens]
            if token_ids:
                found.append(token_ids)
    if not found:
        raise PromptFileError(f"{name} has no prompts: one JSON string or object with `prompt` a line is wanted")
    return found


def _token_ids(line: str, tokenizer: PromptTokenizer, where: str) -> list[int]:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise PromptFileError(f"{where}: is not JSON: {error}") from error
    if isinstance(item, str):
        return tokenizer.encode(item)
    fields = item if isinstance(item, dict) else {}
    for key in ("prompt", "text"):
        if isinstance(fields.get(key), str):
            return tokenizer.encode(fields[key])
    token_ids = fields.get("prompt_token_ids")
    if isinstance(token_ids, list) and all(type(token) is int and token >= 0 for token in token_ids):
        return token_ids
    if isinstance(fields.get("messages"), list):
        if tokenizer.encode_chat is None:
            raise PromptFileError(f"{where}: has messages, but the model has no chat template; use `prompt`")
        return tokenizer.encode_chat(fields["messages"])
    raise PromptFileError(f"{where}: has no `prompt`, `text`, `messages` or `prompt_token_ids`")
