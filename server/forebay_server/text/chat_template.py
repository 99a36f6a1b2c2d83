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
_END_MARK = "\U0010fdd2"
"""After the message that the answer goes on with."""
_PRIVATE = str.maketrans(dict.fromkeys((_MARK_OPEN, _MARK_CLOSE, _END_MARK), "\ufffd"))


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

    def reads(self, name: str) -> bool:
        """Whether the template uses a name, such as `tools`."""
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None

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
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> list[int]:
        """Render and tokenize; the template alone decides about a begin-of-sequence token.

        Args:
            messages: as for `prompt`.
            add_generation_prompt: as for `prompt`.
            variables: as for `prompt`.
            continue_final_message: the prompt ends with the last message's text, so that the answer goes on with it.
            tools: OpenAI's, for a template that knows some.

        Raises:
            InvalidRequestError: see `prompt`; or the template leaves the last message out.
        """
        shield = _Shield(self._tokenizer)
        shielded = [shield.copy_of(message) for message in messages]
        names = shield.copy_of(variables or {})
        if tools:
            names["tools"] = [shield.copy_of(tool) for tool in tools]
        if continue_final_message:  # the space tells whether the template strips
            shielded[-1]["content"] = f"{shielded[-1].get('content') or ''}{_END_MARK} "
        prompt = self.prompt(shielded, add_generation_prompt=add_generation_prompt, variables=names)
        if continue_final_message:
            prompt = _upto_end_mark(prompt)
        pattern = self._tokenizer.special_token_pattern
        if pattern is None or not shield.texts:
            return self._tokenizer.encode(prompt, add_special_tokens=False)
        token_ids: list[int] = []
        for index, part in enumerate(pattern.split(prompt)):
            if index % 2:
                token_ids.append(self._tokenizer.special_tokens[part])
            elif part:
                token_ids += self._tokenizer.encode_ordinary(_unshield(part, shield.texts))
        return token_ids


class _Shield:
    """Copies values so that no string in them holds a control token.

    Args:
        tokenizer: whose control tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pattern = tokenizer.special_token_pattern
        self.texts: list[str] = []
        """The control tokens that were found."""

    def copy_of(self, value: Mapping[str, object]) -> dict[str, object]:
        """A message, a tool or names for the template."""
        return {key: self._replace(inner) for key, inner in value.items()}

    def _replace(self, item: object) -> object:
        if isinstance(item, str):
            return self._replace_text(item)
        if isinstance(item, Mapping):
            return {
                self._replace_text(key) if isinstance(key, str) else key: self._replace(inner)
                for key, inner in item.items()
            }
        if isinstance(item, list):
            return [self._replace(inner) for inner in item]
        return item

    def _replace_text(self, text: str) -> str:
        text = text.translate(_PRIVATE)
        if self._pattern is None:
            return text
        parts = self._pattern.split(text)
        for index in range(1, len(parts), 2):
            self.texts.append(parts[index])
            parts[index] = f"{_MARK_OPEN}{len(self.texts) - 1}{_MARK_CLOSE}"
        return "".join(parts)


def _upto_end_mark(prompt: str) -> str:
    """The prompt up to the end of the last message, stripped if the template strips."""
    text, mark, rest = prompt.rpartition(_END_MARK)
    if not mark:
        raise InvalidRequestError(
            "the model's chat template does not show the last message, so that no answer can go on with it",
            param="continue_final_message",
        )
    text = text if rest.startswith(" ") else text.rstrip()
    return text.replace(f"{_END_MARK} ", "").replace(_END_MARK, "")  # of a template that shows a message twice


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
