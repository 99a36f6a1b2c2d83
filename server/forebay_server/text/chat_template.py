"""Messages to a prompt, by the Jinja template that the model carries, in a sandbox; and that prompt to token ids.

Control tokens that a user writes into a message stay text: only the template may produce them. For that they are
replaced by private markers before rendering and put back, as ordinary text, when the prompt is tokenized.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import Environment, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forebay_server.errors import ExitCode, InvalidRequestError, StartupError
from forebay_server.text.tokenizer import Tokenizer

_RENDERING_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
_MARK_OPEN, _MARK_CLOSE = "\U0010fdd0", "\U0010fdd1"
"""Around the number of a shielded control token; characters of a private plane, removed from what users write."""
_MARKER = re.compile(f"{_MARK_OPEN}([0-9]+){_MARK_CLOSE}")


class _GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's words for training: here only its body matters."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One model's template.

    Args:
        source: Jinja text.
        tokenizer: of the same model.

    Raises:
        StartupError: BAD_CONFIGURATION, when the template is not valid Jinja.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.source = source
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise StartupError(
                ExitCode.BAD_CONFIGURATION,
                "BadChatTemplate",
                f"the model's chat template is not valid Jinja: line {error.lineno}: {error.message}",
            ) from error

    @property
    def knows_tools(self) -> bool:
        """Whether the template tells the model of tools."""
        return re.search(r"\btools\b", self.source) is not None

    def prompt(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Render the prompt.

        Args:
            messages: `role`, `content` and whatever else the template reads.
            add_generation_prompt: end with the beginning of the assistant's answer.
            variables: further names for the template (`chat_template_kwargs`).

        Raises:
            InvalidRequestError: the template refuses the messages, or cannot deal with them.
        """
        names: dict[str, object] = {
            "bos_token": self._tokenizer.bos_token,
            "eos_token": self._tokenizer.eos_token,
            "tools": None,
            "documents": None,
            **(variables or {}),
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(names)
        except _RENDERING_ERRORS as error:
            raise InvalidRequestError(
                f"the model's chat template cannot render these messages: {error}", param="messages"
            ) from error

    def prompt_token_ids(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> list[int]:
        """Render and tokenize; the template alone decides about a begin-of-sequence token.

        Arguments and errors are those of `prompt`; `tools` are OpenAI's, for a template that knows some.
        """
        pattern = self._tokenizer.special_token_pattern
        shielded_texts: list[str] = []
        shielded = [_shield(message, self._tokenizer, shielded_texts) for message in messages]
        if tools:
            told = [_shield(tool, self._tokenizer, shielded_texts) for tool in tools]
            variables = {**(variables or {}), "tools": told}
        prompt = self.prompt(shielded, add_generation_prompt=add_generation_prompt, variables=variables)
        if pattern is None or not shielded_texts:
            return self._tokenizer.encode(prompt, add_special_tokens=False)
        token_ids: list[int] = []
        for index, part in enumerate(pattern.split(prompt)):
            if index % 2:
                token_ids.append(self._tokenizer.special_tokens[part])
            elif part:
                token_ids += self._tokenizer.encode_ordinary(_unshield(part, shielded_texts))
        return token_ids


def _shield(value: Mapping[str, object], tokenizer: Tokenizer, shielded_texts: list[str]) -> dict[str, object]:
    """A copy of a message in which no string holds a control token; those found are appended to `shielded_texts`."""
    pattern = tokenizer.special_token_pattern

    def replace(item: object) -> object:
        if isinstance(item, str):
            item = item.replace(_MARK_OPEN, "\ufffd").replace(_MARK_CLOSE, "\ufffd")
            if pattern is None:
                return item
            parts = pattern.split(item)
            for index in range(1, len(parts), 2):
                shielded_texts.append(parts[index])
                parts[index] = f"{_MARK_OPEN}{len(shielded_texts) - 1}{_MARK_CLOSE}"
            return "".join(parts)
        if isinstance(item, Mapping):
            return {key: replace(inner) for key, inner in item.items()}
        if isinstance(item, list):
            return [replace(inner) for inner in item]
        return item

    return {key: replace(inner) for key, inner in value.items()}


def _unshield(text: str, shielded_texts: Sequence[str]) -> str:
    return _MARKER.sub(lambda match: shielded_texts[int(match[1])], text)


def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: object, indent: int | None = None, **options: object) -> str:
    """JSON as it is: Jinja's own filter escapes for HTML."""
    separators = options.get("separators")
    pair = (str(separators[0]), str(separators[1])) if isinstance(separators, list | tuple) else None
    return json.dumps(
        value, ensure_ascii=False, indent=indent, separators=pair, sort_keys=bool(options.get("sort_keys"))
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
