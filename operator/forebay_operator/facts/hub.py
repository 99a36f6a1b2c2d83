"""Facts of a model on the Hugging Face Hub, from its metadata alone: configuration, index and headers, never weights.

Protocol: `GET /{repository}/resolve/{revision}/{file}`, which may redirect to where the file lies, with byte ranges for
the headers; `GET /api/models/{repository}/revision/{revision}` lists the files. A token is sent to the hub only, never
to a host that it redirects to.
"""

import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote, urljoin, urlsplit

from forebay_operator.facts.errors import bad_config, corrupt, not_allowed, not_found
from forebay_operator.facts.gguf_facts import facts_of_gguf
from forebay_operator.facts.gguf_header import MoreNeededError, parse_gguf_header
from forebay_operator.facts.inspect_model import (
    MAX_CONFIG_BYTES,
    MODELOPT_NAME,
    check_complete,
    facts_of_config,
    parse_object,
)
from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.facts.safetensors_header import (
    INDEX_NAME,
    PREFIX_BYTES,
    StoredTensor,
    header_length,
    indexed_tensors,
    parse_header,
    parse_index,
)

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
SCHEME: Final = "hf://"
TIMEOUT_SECONDS: Final = 10
PARALLEL_REQUESTS: Final = 8
SAFETENSORS_START: Final = 64 * 1024
"""Most headers are shorter; a longer one takes a second request."""
GGUF_STARTS: Final = (1 << 20, 8 << 20, 64 << 20)
"""Bytes of a GGUF file that are asked for, one after the other, until its header is whole."""

_ADDRESS: Final = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+?))?(?P<file>/[^@]+\.gguf)?"
)


@dataclass(frozen=True, slots=True)
class HubAddress:
    """`hf://org/name[@revision][/file.gguf]`."""

    repository: str
    revision: str = "main"
    file: str = ""

    @classmethod
    def parse(cls, text: str) -> "HubAddress | None":
        """The address; None when it is none. The scheme may be left out."""
        match = _ADDRESS.fullmatch(text.removeprefix(SCHEME))
        if match is None:
            return None
        return cls(match["repository"], match["revision"] or "main", (match["file"] or "").lstrip("/"))

    def name(self, file: str) -> str:
        """A file of the repository, for messages."""
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{SCHEME}{self.repository}{revision}/{file}"


@dataclass(frozen=True, slots=True)
class Start:
    """The first bytes of a file, and how many it has in all."""

    data: bytes
    size: int


class Hub:
    """One hub, as one user.

    Args:
        endpoint: where it is.
        token: of the user; empty: nobody in particular.
    """

    def __init__(self, endpoint: str = DEFAULT_ENDPOINT, token: str = "") -> None:
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._opener = urllib.request.build_opener(_KeepsTokenHome)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Hub":
        """The hub of HF_ENDPOINT, as the user of HF_TOKEN or of the token file that `hf auth login` writes."""
        token = environment.get("HF_TOKEN", "").strip()
        if not token:
            home = environment.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
            path = Path(environment.get("HF_TOKEN_PATH") or Path(home) / "token")
            try:
                token = path.read_text(encoding="utf-8").strip()
            except (OSError, ValueError):
                token = ""  # most people have none
        return cls(environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT, token)

    def whole(self, address: HubAddress, file: str) -> bytes | None:
        """A small file; None when the repository does not have it.

        Raises:
            FactsError: no such repository or revision, no right to it, too large, or the hub cannot be reached.
        """
        start = self.start(address, file, MAX_CONFIG_BYTES)
        if start is not None and start.size > MAX_CONFIG_BYTES:
            raise bad_config(f"{address.name(file)}: {start.size} bytes are too many for a configuration")
        return None if start is None else start.data

    def start(self, address: HubAddress, file: str, num_bytes: int, *, skip: int = 0) -> Start | None:
        """Up to `num_bytes` bytes from the byte `skip` on; None when the repository does not have the file.

        Raises:
            FactsError: as `whole`.
        """
        path = f"/{quote(address.repository)}/resolve/{quote(address.revision, safe='')}/{quote(file)}"
        return self._get(path, address.name(file), num_bytes, skip)

    def files(self, address: HubAddress) -> list[str]:
        """Names of all files of a repository.

        Raises:
            FactsError: as `whole`.
        """
        what = f"{SCHEME}{address.repository}"
        path = f"/api/models/{quote(address.repository)}/revision/{quote(address.revision, safe='')}"
        answer = self._get(path, what, MAX_CONFIG_BYTES, None)
        if answer is None:
            raise not_found(f"{what}: the hub has no such model or revision")
        siblings = parse_object(answer.data, what).get("siblings")
        entries = siblings if isinstance(siblings, list) else []
        return [str(entry["rfilename"]) for entry in entries if isinstance(entry, dict) and "rfilename" in entry]

    def _get(self, path: str, what: str, num_bytes: int, skip: int | None) -> Start | None:
        """One request; None for a file that is not there. `skip` None: no range is asked for."""
        headers = {"User-Agent": "forebay"}
        if skip is not None:
            headers["Range"] = f"bytes={skip}-{skip + num_bytes - 1}"
        request = urllib.request.Request(self._endpoint + path, headers=headers)
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as response:
                return _read(response, num_bytes, skip or 0)
        except urllib.error.HTTPError as error:
            with error:
                self._check(error, what)
            return None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise not_found(
                f"{what}: {self._endpoint} cannot be reached: {reason}; pass the path of the model on this machine"
            ) from None

    def _check(self, error: urllib.error.HTTPError, what: str) -> None:
        """Raise what the hub means; nothing when it only means that there is no such file."""
        code = error.headers.get("X-Error-Code", "")
        if code == "GatedRepo" or error.code == 403:
            how = "ask for access on its page" if self._token else "accept its terms on its page, and set HF_TOKEN"
            raise not_allowed(f"{what}: gated or forbidden for {'this token' if self._token else 'anonymous'}; {how}")
        if code == "RevisionNotFound":
            raise not_found(f"{what}: the model has no such revision")
        if error.code == 401 or code == "RepoNotFound":  # private ones are hidden as if they were not there
            how = "" if self._token else "; if it is private or gated, set HF_TOKEN"
            raise not_found(f"{what}: the hub has no such model, or does not show it to this user{how}")
        if error.code != 404:
            raise not_found(f"{what}: the hub answers {error.code} {error.reason}")


def _read(response: Any, num_bytes: int, skip: int) -> Start:
    if response.status == 206:
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
    else:  # the server does not know ranges and sends all of it
        total = response.headers.get("Content-Length") or ""
        response.read(skip)
    data = response.read(num_bytes)
    return Start(data, int(total) if total.isdecimal() else skip + len(data))


class _KeepsTokenHome(urllib.request.HTTPRedirectHandler):
    """Follows redirects; the token goes along only within the same host (a repository that was renamed)."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """See HTTPRedirectHandler."""
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        target = urlsplit(urljoin(req.full_url, newurl))
        here = urlsplit(req.full_url)
        if following is not None and token and (target.scheme, target.netloc) == (here.scheme, here.netloc):
            following.add_unredirected_header("Authorization", token)
        return following


def hub_facts(address: HubAddress, hub: Hub) -> ModelFacts:
    """Facts of a model on the hub.

    Raises:
        FactsError: not there, not allowed, not reachable, or nothing that is known; one line that names what.
    """
    if address.file:
        return _gguf_facts(address, hub)
    raw = hub.whole(address, "config.json")
    if raw is None:
        return _gguf_facts(_only_gguf(address, hub), hub)
    config = parse_object(raw, address.name("config.json"))
    raw = hub.whole(address, MODELOPT_NAME)
    modelopt = None if raw is None else parse_object(raw, address.name(MODELOPT_NAME))
    facts = facts_of_config(config, address.name("config.json"), modelopt, _tensors(address, hub))
    check_complete(facts, f"{SCHEME}{address.repository}", "config.json")
    return facts


def _tensors(address: HubAddress, hub: Hub) -> list[StoredTensor]:
    """What the headers of the safetensors list; nothing when there are none."""
    raw = hub.whole(address, INDEX_NAME)
    if raw is None:
        return _header(address, hub, "model.safetensors") or []
    weight_map = parse_index(raw, address.name(INDEX_NAME))
    names = sorted(set(weight_map.values()))
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        headers = list(pool.map(lambda name: _header(address, hub, name), names))
    tensors_by_file = {}
    for name, tensors in zip(names, headers, strict=True):
        if tensors is None:
            raise not_found(f"{address.name(name)}: missing, but {INDEX_NAME} names it")
        tensors_by_file[name] = tensors
    return indexed_tensors(weight_map, tensors_by_file, address.name(INDEX_NAME))


def _header(address: HubAddress, hub: Hub, file: str) -> list[StoredTensor] | None:
    source = address.name(file)
    start = hub.start(address, file, SAFETENSORS_START)
    if start is None:
        return None
    length = header_length(start.data[:PREFIX_BYTES], start.size, source)
    raw = start.data[PREFIX_BYTES : PREFIX_BYTES + length]
    if len(raw) < length:
        rest = hub.start(address, file, length - len(raw), skip=PREFIX_BYTES + len(raw))
        raw += b"" if rest is None else rest.data
    return parse_header(raw, start.size, source)


def _gguf_facts(address: HubAddress, hub: Hub) -> ModelFacts:
    source = address.name(address.file)
    for num_bytes in GGUF_STARTS:
        start = hub.start(address, address.file, num_bytes)
        if start is None:
            raise not_found(f"{source}: the repository has no such file")
        try:
            return facts_of_gguf(parse_gguf_header(start.data, start.size, source), source)
        except MoreNeededError:
            continue
    raise corrupt(f"{source}: its header is longer than {GGUF_STARTS[-1]} bytes")


def _only_gguf(address: HubAddress, hub: Hub) -> HubAddress:
    ggufs = [name for name in hub.files(address) if name.endswith(".gguf")]
    if len(ggufs) == 1:
        return HubAddress(address.repository, address.revision, ggufs[0])
    if ggufs:
        raise bad_config(
            f"{SCHEME}{address.repository}: has {len(ggufs)} GGUF files ({', '.join(ggufs[:5])}); name one of them: "
            f"{address.name(ggufs[0])}"
        )
    raise not_found(f"{SCHEME}{address.repository}: has neither config.json nor a GGUF file")
