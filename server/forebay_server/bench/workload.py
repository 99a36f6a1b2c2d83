"""The requests of a load: random prompts of drawn lengths, or the prompts of a file. No network here."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from forebay_server.bench.lengths import Lengths
from forebay_server.errors import ForebayError

PromptForm = Literal["ids", "text"]
_TEXT = (
    "about after again air all along also always animal answer any around ask away back before began between "
    "big book both boy build call came change children city close come could country day different does door "
    "down each earth eat end enough even every eye face family far father feet few find fire first five follow "
    "food form found four"
)
_WORDS = _TEXT.split()
"""Common ones: most tokenizers have a token for each."""


class WorkloadError(ForebayError):
    """The prompts cannot be used; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks."""

    content: str | list[int] | list[Mapping[str, Any]]
    """A text, token ids, or the messages of a chat."""
    num_tokens: int
    """That were asked for; 0: unknown."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class RandomWorkload:
    """Prompts that no cache has seen, but for the prefixes that they are meant to share."""

    form: PromptForm
    prompt_lengths: Lengths
    output_lengths: Lengths
    vocab_size: int
    """Random token ids are below this."""
    seed: int
    shared_prefix_tokens: int = 0
    """In front of the drawn length."""
    num_shared_prefixes: int = 1
    """How many different ones; each request has one of them."""

    def prompts(self) -> Iterator[Prompt]:
        """Without end; the same for the same seed."""
        generator = random.Random(self.seed)
        prefixes = [self._items(generator, self.shared_prefix_tokens) for _ in range(self.num_shared_prefixes)]
        while True:
            items = generator.choice(prefixes) + self._items(generator, self.prompt_lengths.draw(generator))
            max_tokens = self.output_lengths.draw(generator)
            content: str | list[int] = items if self.form == "ids" else " ".join(_WORDS[item] for item in items)
            yield Prompt(content, len(items), max_tokens)

    def _items(self, generator: random.Random, number: int) -> list[int]:
        """Token ids, or places in the list of words."""
        return generator.choices(range(self.vocab_size if self.form == "ids" else len(_WORDS)), k=number)


@dataclass(frozen=True, slots=True)
class FileWorkload:
    """The prompts of a file, round and round."""

    contents: list[str | list[int] | list[Mapping[str, Any]]]
    output_lengths: Lengths
    seed: int
    max_tokens: list[int | None] = field(default_factory=list)
    """Of each prompt, where its line says."""

    def prompts(self) -> Iterator[Prompt]:
        """Without end."""
        generator = random.Random(self.seed)
        while True:
            for content, own_max in zip(self.contents, self.max_tokens, strict=True):
                drawn = self.output_lengths.draw(generator)
                ids = isinstance(content, list) and bool(content) and isinstance(content[0], int)
                yield Prompt(content, len(content) if ids else 0, own_max or drawn)


def read_workload(path: str, output_lengths: Lengths, seed: int, *, is_chat: bool) -> FileWorkload:
    """Read a .jsonl file.

    A line is a string, or an object with `prompt`, `messages` or `prompt_token_ids`, and perhaps `max_tokens`.

    Raises:
        WorkloadError: unreadable, empty, or with a line that the endpoint cannot be asked.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"--prompts {path}: {error}") from error
    contents, max_tokens = [], []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            content, own_max = _content(line, f"{path}, line {number}", is_chat=is_chat)
            contents.append(content)
            max_tokens.append(own_max)
    if not contents:
        raise WorkloadError(f"--prompts {path}: has no prompts")
    return FileWorkload(contents, output_lengths, seed, max_tokens)


def _content(line: str, where: str, *, is_chat: bool) -> tuple[str | list[int] | list[Mapping[str, Any]], int | None]:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise WorkloadError(f"{where}: is not JSON: {error}") from error
    fields = {"prompt": item} if isinstance(item, str) else item
    if not isinstance(fields, dict):
        raise WorkloadError(f"{where}: a JSON string or an object with `prompt` is wanted")
    own_max = fields.get("max_tokens")
    if own_max is not None and (type(own_max) is not int or own_max < 1):
        raise WorkloadError(f"{where}: max_tokens is {own_max!r}; it must be a whole number above 0")
    messages = fields.get("messages")
    if isinstance(messages, list) and messages:
        if not is_chat:
            raise WorkloadError(f"{where}: has messages; that needs --endpoint chat")
        return messages, own_max
    prompt = fields.get("prompt", fields.get("text", fields.get("prompt_token_ids")))
    if isinstance(prompt, str) and prompt:
        return prompt, own_max
    if isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt):
        if is_chat:
            raise WorkloadError(f"{where}: has token ids; that needs --endpoint completions")
        return prompt, own_max
    raise WorkloadError(f"{where}: has no `prompt`, `messages` or `prompt_token_ids`")


def request_body(
    prompt: Prompt, model: str, *, is_chat: bool, ignore_eos: bool, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """What is sent."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": prompt.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ignore_eos:
        body["ignore_eos"] = True
    if is_chat:
        content = prompt.content
        body["messages"] = [{"role": "user", "content": content}] if isinstance(content, str) else content
    else:
        body["prompt"] = prompt.content
    return {**body, **extra}
