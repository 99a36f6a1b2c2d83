"""Why a model's metadata could not be read, with the exit code that the contract gives to it."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How `forebay inspect` ends when it fails; the same numbers as the engine's."""

    BAD_USE = 2
    NOT_FOUND = 11
    NOT_ALLOWED = 12
    CORRUPT = 16


class FactsError(Exception):
    """The metadata is missing, unreadable or not of a known kind.

    Args:
        exit_code: what the process ends with.
        reason: CamelCase word, stable, for a condition in status.
        message: one line naming the file and, where there is one, the key.
    """

    def __init__(self, exit_code: ExitCode, reason: str, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.reason = reason
        self.message = message


def not_found(message: str) -> FactsError:
    """The file or folder is not there."""
    return FactsError(ExitCode.NOT_FOUND, "ModelNotFound", message)


def not_allowed(message: str) -> FactsError:
    """The file is there, but may not be read."""
    return FactsError(ExitCode.NOT_ALLOWED, "ModelNotAllowed", message)


def corrupt(message: str) -> FactsError:
    """The file is cut short, or is not what its name says."""
    return FactsError(ExitCode.CORRUPT, "CorruptModel", message)


def bad_config(message: str) -> FactsError:
    """A key is missing, of the wrong kind or out of range, or the architecture is not known."""
    return FactsError(ExitCode.BAD_USE, "UnsupportedModel", message)
