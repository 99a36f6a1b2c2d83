"""Asks a component whether it works: over HTTP, or by running a command."""

import http.client
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class HttpCheck:
    """Healthy when this URL answers 200.

    Attributes:
        url: on the node's address: loopback inside the namespace is out of the host's reach.
        authority: certificate authority that an https URL must be signed by.
    """

    url: str
    authority: Path | None = None

    def problem(self) -> str | None:
        """Return what is wrong, or None."""
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]  # no proxy on the way to a veth
        try:
            if self.authority is not None:
                context = ssl.create_default_context(cafile=str(self.authority))
                handlers.append(urllib.request.HTTPSHandler(context=context))
            with urllib.request.build_opener(*handlers).open(self.url, timeout=_TIMEOUT_SECONDS):
                return None
        except urllib.error.HTTPError as error:
            return f"{self.url} answers {error.code}"
        except (OSError, http.client.HTTPException) as error:
            return f"{self.url}: {error}"


@dataclass(frozen=True, slots=True)
class CommandCheck:
    """Healthy when this command ends with exit code 0."""

    command: tuple[str, ...]

    def problem(self) -> str | None:
        """Return what is wrong, or None."""
        try:
            done = subprocess.run(self.command, capture_output=True, text=True, timeout=10 * _TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"`{self.command[0]}` does not answer"
        return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


Check = HttpCheck | CommandCheck
