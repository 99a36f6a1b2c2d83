"""Typed, checked access to a checkpoint's quantization configuration."""

from collections.abc import Mapping
from typing import Any, TypeVar

from forebay_server.errors import StartupError
from forebay_server.models.model_config import Fields, unsupported

Value = TypeVar("Value", int, str)


class ConfigValues(Fields):
    """See `Fields`; what makes no sense is exit code 16, what is sound and not supported is 2."""

    def unsupported(self, key: str, possible: str) -> StartupError:
        """The error for a value that this engine cannot do."""
        return unsupported(f"{self.source}: {key} is {self.values.get(key)!r}, which is not supported; {possible}")

    def choice(self, key: str, possible: tuple[Value, ...], default: Value | None = None) -> Value:
        """One of several values."""
        value = self.values.get(key)
        if value is None:
            value = default
        for candidate in possible:
            if value == candidate and type(value) is type(candidate):
                return candidate
        raise self.unsupported(key, f"{', '.join(map(str, possible))} would be")

    def group_size(self, key: str, default: int) -> int:
        """Inputs that share a scale: -1 for a whole row, or a multiple of 32."""
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
            raise self.wrong(key, "-1 (a whole row) or a whole number above 0")
        if value != -1 and value % 32:
            raise self.unsupported(key, "multiples of 32 and -1 are")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object; empty when it is not there."""
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty when it is not there."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.wrong(key, "a list of names")
        return tuple(value)

    def inner(self, key: str) -> "ConfigValues":
        """The object under a key.

        Raises:
            StartupError: 16 when there is none.
        """
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return ConfigValues(value, f"{self.source} {key}")
