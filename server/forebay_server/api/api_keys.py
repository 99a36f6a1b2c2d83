"""API keys from a file, one a line; read again when the file changes (a mounted Secret does)."""

import hashlib
import hmac
import logging
import time
from pathlib import Path

_CHECK_SECONDS = 1.0
_logger = logging.getLogger(__name__)


class ApiKeys:
    """The keys that are valid now.

    Args:
        path: the file; empty lines and lines that begin with `#` are skipped. A file without keys lets nobody in.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests: list[bytes] = []
        self._version: tuple[int, int] | None = None
        self._next_check = 0.0

    def accepts(self, authorization: str) -> bool:
        """Whether an Authorization header carries a valid key; takes the same time for every wrong key."""
        self._refresh()
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)

    def _refresh(self) -> None:
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_SECONDS
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_ino) == self._version:
                return
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            _logger.error("cannot read the API keys again, the old ones stay valid: %s", error)
            return
        keys = [line.strip() for line in lines]
        self._digests = [_digest(key) for key in keys if key and not key.startswith("#")]
        self._version = (stat.st_mtime_ns, stat.st_ino)
        _logger.info("%d API keys read from %s", len(self._digests), self._path)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
