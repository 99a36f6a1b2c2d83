"""One streamed request over HTTP, with the times of its tokens; and what is asked of an endpoint before a load."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from forebay_server.bench.records import RequestRecord
from forebay_server.errors import ForebayError

_ENDPOINTS = {"chat": "/chat/completions", "completions": "/completions"}
_MAX_EVENT_BYTES = 1 << 22
_DETAIL_CHARACTERS = 200


class EndpointError(ForebayError):
    """The endpoint cannot be measured; the message says what was tried and what would help."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds."""

    connect: float = 5.0
    idle: float = 60.0
    """Without a byte of the answer."""
    request: float = 600.0
    """For the whole of a request."""


class EndpointClient:
    """Talks to one endpoint.

    Args:
        base_url: up to and with `/v1`.
        endpoint: `chat` or `completions`.
        api_key: sent as a bearer token; None: none.
        timeouts: of every request.
        clock: seconds, monotonic.
    """

    def __init__(
        self, base_url: str, endpoint: str, api_key: str | None, timeouts: Timeouts, clock: Callable[[], float]
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._url = self._base_url + _ENDPOINTS[endpoint]
        self._clock = clock
        limits = aiohttp.ClientTimeout(
            total=timeouts.request, sock_connect=timeouts.connect, connect=None, sock_read=timeouts.idle
        )
        self._session = aiohttp.ClientSession(
            timeout=limits,
            connector=aiohttp.TCPConnector(limit=0),
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            read_bufsize=_MAX_EVENT_BYTES,
        )

    async def close(self) -> None:
        """Give the connections back."""
        await self._session.close()

    async def first_model(self) -> str:
        """The first model that the endpoint lists.

        Raises:
            EndpointError: nobody answers there, or not in the way of OpenAI.
        """
        url = f"{self._base_url}/models"
        try:
            async with self._session.get(url) as response:
                body = await response.read()
                if response.status != 200:
                    raise EndpointError(f"GET {url} answers {response.status}: {_detail(body)}")
                models = msgspec.json.decode(body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EndpointError(
                f"GET {url}: {_reason(error)}; is the server running, and is --base-url right?"
            ) from error
        except msgspec.DecodeError as error:
            raise EndpointError(f"GET {url}: is not JSON ({error}); --base-url should end with /v1") from error
        data = models.get("data") if isinstance(models, dict) else None
        if not isinstance(data, list) or not data or not isinstance(data[0].get("id"), str):
            raise EndpointError(f"GET {url}: lists no model; name one with --model")
        return str(data[0]["id"])

    async def send(self, body: Mapping[str, Any], record: RequestRecord) -> None:
        """Send one request and note into its record whatever comes; never raises for what the server does."""
        record.sent = self._clock()
        try:
            async with self._session.post(self._url, data=msgspec.json.encode(body), headers=_JSON) as response:
                if response.status != 200:
                    _fail(record, f"http {response.status}", _detail(await response.read()))
                else:
                    await self._read(response, record)
        except TimeoutError as error:  # aiohttp's kinds of it too
            _fail(record, "timeout", _reason(error))
        except aiohttp.ClientConnectorError as error:
            _fail(record, "connection", _reason(error))
        except (aiohttp.ClientError, OSError) as error:
            _fail(record, "broken stream" if record.chunk_times else "connection", _reason(error))
        except (msgspec.DecodeError, ValueError) as error:
            _fail(record, "bad answer", _reason(error))
        record.ended = self._clock()

    async def _read(self, response: aiohttp.ClientResponse, record: RequestRecord) -> None:
        """Read events until the closing one."""
        reader = _StreamReader(record, self._clock)
        async for line in response.content:
            if reader.take(line):
                break
        reader.finish()


class _StreamReader:
    """Makes tokens and times of the lines of an event stream."""

    def __init__(self, record: RequestRecord, clock: Callable[[], float]) -> None:
        self._record = record
        self._clock = clock
        self._is_done = False

    def take(self, line: bytes) -> bool:
        """Note one line; true after the last one."""
        if not line.startswith(b"data:"):
            return False
        content = line[5:].strip()
        if content == b"[DONE]":
            self._is_done = True
            return True
        self._note(msgspec.json.decode(content, type=_Chunk))
        return False

    def _note(self, chunk: "_Chunk") -> None:
        record = self._record
        if chunk.error is not None:
            _fail(record, "error event", str(chunk.error)[:_DETAIL_CHARACTERS])
        if any(choice.has_token for choice in chunk.choices):
            record.chunk_times.append(self._clock())
            record.chunk_tokens.append(1)
        if chunk.usage is not None:
            record.prompt_tokens = chunk.usage.prompt_tokens or record.prompt_tokens
            record.output_tokens = chunk.usage.completion_tokens

    def finish(self) -> None:
        """Note how it ended."""
        record = self._record
        if record.error is not None:
            return
        if not self._is_done:
            _fail(record, "broken stream", "the stream ended without [DONE]")
        elif not record.chunk_times:
            _fail(record, "empty answer", "no token came")
        if not record.output_tokens:  # a server that counts for nobody
            record.output_tokens = len(record.chunk_times)


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_token(self) -> bool:
        """Whether it brings something that the model said; the opening chunk of a chat names only the role."""
        if self.delta is None:
            return self.text is not None and bool(self.text or self.finish_reason)
        delta = self.delta
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_JSON = {"Content-Type": "application/json"}


def _fail(record: RequestRecord, kind: str, detail: str) -> None:
    record.error, record.error_detail = kind, detail


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _detail(body: bytes) -> str:
    """What an error's body says, shortened."""
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError:
        content = None
    inner = content.get("error") if isinstance(content, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    return str(message or body.decode(errors="replace"))[:_DETAIL_CHARACTERS]
