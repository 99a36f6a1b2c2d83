"""A model hub as the real one speaks: resolve with redirects and ranges, error codes in headers, a list of files.

Files lie at another "host" (another port), where a token must not arrive. Every request is remembered.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

TOKEN = "hf_secret"


@dataclass
class Repository:
    """One model."""

    folder: Path
    gated: bool = False
    private: bool = False
    renamed_to: str = ""


@dataclass
class FakeHub:
    """What the hub has, and what it was asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Where (hub or store), path and token of each."""
    sent_bytes: int = 0
    knows_ranges: bool = True
    url: str = ""
    store_url: str = ""


class _Handler(BaseHTTPRequestHandler):
    where = "hub"
    hub: FakeHub

    def do_GET(self) -> None:
        path = unquote(self.path)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.hub.requests.append((self.where, path, token))
        if self.where == "store":
            name, _, file = path.removeprefix("/").partition("//")
            self._send_file(self.hub.repositories[name].folder / file)
        else:
            self._hub(path, token)

    def _hub(self, path: str, token: str) -> None:
        match = re.fullmatch(r"/(?:api/models/([^/]+/[^/]+)/revision/([^/]+)|([^/]+/[^/]+)/resolve/([^/]+)/(.+))", path)
        if match is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "")
        name, revision, file = match[1] or match[3], match[2] or match[4], match[5]
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and token != TOKEN):
            return self._refuse(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
        if repository.renamed_to:
            self.send_response(HTTPStatus.TEMPORARY_REDIRECT)
            self.send_header("Location", self.path.replace(name, repository.renamed_to))
            return self._end()
        if revision != "main":
            return self._refuse(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        if file is None:
            names = sorted(str(p.relative_to(repository.folder)) for p in repository.folder.rglob("*") if p.is_file())
            return self._send(json.dumps({"siblings": [{"rfilename": name} for name in names]}).encode())
        if repository.gated and token != TOKEN:
            return self._refuse(HTTPStatus.UNAUTHORIZED if not token else HTTPStatus.FORBIDDEN, "GatedRepo")
        if not (repository.folder / file).is_file():
            return self._refuse(HTTPStatus.NOT_FOUND, "EntryNotFound")
        if file.endswith(".json") and not file.endswith("index.json"):
            return self._send_file(repository.folder / file)
        self.send_response(HTTPStatus.FOUND)
        self.send_header("Location", f"{self.hub.store_url}/{name}//{file}")
        return self._end()

    def _send_file(self, path: Path) -> None:
        data = path.read_bytes()
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match is None or not self.hub.knows_ranges:
            return self._send(data)
        first, last = int(match[1]), min(int(match[2]), len(data) - 1)
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        return self._end(data[first : last + 1])

    def _send(self, data: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self._end(data)

    def _refuse(self, status: HTTPStatus, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self._end(code.encode())

    def _end(self, data: bytes = b"") -> None:
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
            self.hub.sent_bytes += len(data)
        except ConnectionError:
            return  # it has read what it wanted

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        """Nobody reads it."""


class _Store(_Handler):
    where = "store"


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub that runs until the end of the block."""
    hub = FakeHub()
    servers = []
    for base, name in ((_Handler, "url"), (_Store, "store_url")):
        handler = type("Handler", (base,), {"hub": hub})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        setattr(hub, name, f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
