"""What an answer's text must be (JSON, a regular expression, one of some texts, a grammar), as a grammar in Lark. Pure.

A grammar is text in the language of llguidance; its start rule is `start`.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from llguidance import LLMatcher, grammar_from, regex_to_lark

from forebay_server.errors import InvalidRequestError
from forebay_server.structured.json_schema import Schema, json_schema_grammar
from forebay_server.structured.patterns import portable_pattern

MAX_PATTERN_CHARACTERS = 64 * 1024
MAX_CHOICES = 10_000
ConstraintKind = Literal["json", "regex", "choice", "grammar"]
ANY_OBJECT: Schema = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Constraint:
    """One way to say what the text must be.

    Args:
        kind: how `value` is to be understood.
        value: a JSON Schema; a regular expression; texts; or a grammar in Lark or GBNF.
        where: the field of the request.
    """

    kind: ConstraintKind
    value: object
    where: str

    def rules(self) -> str:
        """The grammar; `start` is its start rule.

        Raises:
            InvalidRequestError: it is wrong, or cannot be enforced.
        """
        if self.kind == "grammar":
            rules = self._grammar()
        elif self.kind == "choice":
            rules = f"start: CHOICE\nCHOICE: {self.inline()}"  # one word for the parser, however many there are
        else:
            rules = f"start: {self.inline()}"
        check_grammar(rules, self.where)
        return rules

    def inline(self) -> str:
        """The same as part of a rule; not for `grammar`."""
        match self.kind, self.value:
            case "json", bool() | dict():
                return f"%json {json_schema_grammar(self.value, self.where)}"
            case "regex", str():
                return self._regex(self.value)
            case "choice", list():
                return self._choice(self.value)
        if self.kind == "grammar":
            raise self._error("cannot be combined with tools")
        raise self._error("is of the wrong type")

    def _regex(self, pattern: str) -> str:
        if not pattern or len(pattern) > MAX_PATTERN_CHARACTERS:
            raise self._error(f"must have 1 to {MAX_PATTERN_CHARACTERS} characters")
        if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
            raise self._error("ends with a backslash")
        try:
            return f"/{regex_to_lark(portable_pattern(pattern))}/"
        except UnicodeError as error:
            raise self._error(f"is no valid Unicode: {error}") from error
        except ValueError as error:
            raise self._error(str(error)) from error

    def _choice(self, texts: list[object]) -> str:
        if not 0 < len(texts) <= MAX_CHOICES:
            raise self._error(f"must hold 1 to {MAX_CHOICES} texts")
        if not all(isinstance(text, str) and text for text in texts):
            raise self._error("must hold texts that are not empty")
        return " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(texts))

    def _grammar(self) -> str:
        text = self.value
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_PATTERN_CHARACTERS:
            raise self._error(f"must be a grammar of 1 to {MAX_PATTERN_CHARACTERS} characters")
        try:
            return str(grammar_from("grammar", text)) if "::=" in text else text
        except (ValueError, RecursionError) as error:
            raise self._error(f"cannot be read: {error}") from error

    def _error(self, what: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self.where} {what}", param=self.where)


def check_grammar(text: str, where: str) -> None:
    """Compile a grammar without a vocabulary.

    Raises:
        InvalidRequestError: with the compiler's reason.
    """
    error = _error_of(text)
    if error:
        raise InvalidRequestError(f"{where} cannot be enforced: {error}", param=where)


@lru_cache(maxsize=64)
def _error_of(text: str) -> str:
    """What the compiler has against a grammar; kept, since many requests bring the same one."""
    try:
        error = LLMatcher.validate_grammar(text)
    except (ValueError, UnicodeError) as failure:  # a lone surrogate
        error = str(failure)
    return error.split("<state>")[0].strip()[:300]
