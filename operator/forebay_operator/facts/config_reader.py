"""ConfigReader: typed look-ups in a model's configuration, with errors that name file and key."""

from collections.abc import Mapping
from typing import Any

from forebay_operator.facts.errors import FactsError, bad_config

MAX_SIZE = 1 << 31
"""No size of a model is larger; catches nonsense before it becomes arithmetic."""
SMALLER_LIMITS = {"num_hidden_layers": 10_000}
"""What is counted one by one is bounded more tightly."""


class ConfigReader:
    """A parsed configuration and where it came from.

    Args:
        data: keys as `config.json` spells them.
        source: file name for messages.
        key_names: for sources that spell keys otherwise (GGUF): our key to theirs, for messages only.
    """

    def __init__(self, data: Mapping[str, Any], source: str, key_names: Mapping[str, str] | None = None) -> None:
        self.data = data
        self.source = source
        self._key_names = key_names or {}

    def name(self, key: str) -> str:
        """The key as the file spells it."""
        return self._key_names.get(key, key)

    def error(self, key: str, problem: str) -> FactsError:
        """An error about one key of this file."""
        return bad_config(f"{self.source}: key {self.name(key)!r} {problem}")

    def has(self, key: str) -> bool:
        """The key is there and not null."""
        return self.data.get(key) is not None

    def size(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A whole number of at least `minimum`.

        Raises:
            FactsError: missing without a default, of another kind, or out of range.
        """
        value = self.data.get(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"must be a whole number, not {value!r}")
        maximum = SMALLER_LIMITS.get(key, MAX_SIZE)
        if not minimum <= value <= maximum:
            raise self.error(key, f"must be between {minimum} and {maximum}, not {value}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {value!r}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self.data.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, "is missing")
        if not isinstance(value, str):
            raise self.error(key, f"must be a string, not {value!r}")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; empty when the key is missing."""
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(key, f"must be a list, not {value!r}")
        return value
