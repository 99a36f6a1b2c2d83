"""Grammar: what travels to the engine with a request whose text is constrained."""

import msgspec


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """A model's reasoning, which the grammar does not constrain: text between two marks before the answer."""

    start: str
    """Such as `<think>`."""
    end: str
    """Such as `</think>`."""
    is_open: bool
    """Whether the prompt ends inside; otherwise the answer may begin with `start`."""


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What the text may be. Checked by the API process; compiled by the engine."""

    text: str
    """In the language of llguidance; its start rule is `start`."""
    thinking: Thinking | None = None
    """None: the first token is already the answer's."""
