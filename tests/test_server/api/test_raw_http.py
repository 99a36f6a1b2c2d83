"""HTTP as clients and proxies speak it that no library of ours is: bytes on a socket, with the fake engine."""

import contextlib
import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.server_process import ServerProcess, wait_for
from tests.test_server.test_pressure import is_idle

COMPLETIONS, HEALTH = "/v1/completions", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def request_bytes(body: Any, *, version: str = "1.1", headers: tuple[str, ...] = ()) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {COMPLETIONS} HTTP/{version}", "Host: x", "Content-Type: application/json", *headers]
    if not any(line.startswith("Transfer-Encoding") for line in headers):
        lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode() + content


@contextlib.contextmanager
def connected(server: ServerProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        yield connection


def until_closed(connection: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of all that comes until the server closes."""
    received = b""
    while part := connection.recv(65536):
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return head, body


def answer(connection: socket.socket) -> tuple[int, Any]:
    """One answer with a length, and not a byte of what follows."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, f"the connection ended after {head!r}"
        head += byte
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    body = b""
    while len(body) < length:
        body += connection.recv(length - len(body))
    return int(head.split()[1]), json.loads(body) if body else None


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_plain_bodies_that_end_with_the_connection(server: ServerProcess, stream: bool) -> None:
    body = {"prompt": "é🙂 and more", "max_tokens": 8, "stream": stream}
    with connected(server) as connection:
        connection.sendall(request_bytes(body, version="1.0", headers=("Connection: keep-alive",)))
        head, plain = until_closed(connection)
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    modern = server.api(COMPLETIONS, body).body
    assert without_ids(plain) == without_ids(modern)


def without_ids(body: bytes) -> list[Any]:
    """The JSON of a body, or of each of its events, without what differs from request to request."""
    events = [json.loads(line.removeprefix(b"data: ")) for line in body.splitlines() if line and b"[DONE]" not in line]
    assert events
    return [{name: value for name, value in event.items() if name not in ("id", "created")} for event in events]


def test_an_error_reaches_http_1_0(server: ServerProcess) -> None:
    with connected(server) as connection:
        connection.sendall(request_bytes({"prompt": "x", "temperature": -1}, version="1.0"))
        head, body = until_closed(connection)
    assert b" 400 " in head.splitlines()[0]
    assert json.loads(body)["error"]["param"] == "temperature"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, br"])
def test_a_compressed_body_is_refused_by_name(server: ServerProcess, coding: str) -> None:
    packed = gzip.compress(json.dumps({"prompt": "x"}).encode())
    refused = server.api(COMPLETIONS, packed, {"Content-Encoding": coding})
    assert refused.status == 415
    assert f"Content-Encoding: {coding}" in refused.json["error"]["message"]
    assert server.api(COMPLETIONS, {"prompt": "x"}, {"Content-Encoding": "identity"}).status == 200


def test_a_connection_serves_on_after_refusals(server: ServerProcess) -> None:
    bad = [b"{", {"prompt": "x", "temperature": -1}, {"prompt": []}, b"\xff", {"model": "other", "prompt": "x"}]
    with connected(server) as connection:
        for body in bad:
            connection.sendall(request_bytes(body))
            assert answer(connection)[0] in (400, 404)
            connection.sendall(request_bytes({"prompt": "ab", "max_tokens": 2}))
            status, told = answer(connection)
            assert (status, told["choices"][0]["text"]) == (200, "ab")


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    bodies = [{"prompt": letter, "max_tokens": 1} for letter in "abc"]
    with connected(server) as connection:
        connection.sendall(b"".join(request_bytes(body) for body in (bodies[0], {"prompt": ""}, *bodies[1:])))
        told = [answer(connection) for _ in range(4)]
    assert [status for status, _ in told] == [200, 400, 200, 200]
    assert [told[index][1]["choices"][0]["text"] for index in (0, 2, 3)] == list("abc")


def test_who_expects_100_continue_gets_it_before_the_body_and_not_when_refused(server: ServerProcess) -> None:
    head, _, body = request_bytes({"prompt": "ab", "max_tokens": 2}, headers=("Expect: 100-continue",)).partition(
        b"\r\n\r\n"
    )
    with connected(server) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert answer(connection)[0] == 200
    for refusal, status in ((b"Content-Encoding: gzip", 415), (b"Content-Length: 99000000", 413)):
        lines = [line for line in head.split(b"\r\n") if not line.startswith(refusal.partition(b":")[0])]
        with connected(server) as connection:
            connection.sendall(b"\r\n".join([*lines, refusal, b"", b""]))
            assert answer(connection)[0] == status, "at once, and not after the body"
            assert connection.recv(1) == b"", "a body that still comes could be taken for a request"


@pytest.mark.parametrize("sent", [b"", b'{"prompt"', b'{"prompt": "abc", "ignore_eos": true, "max_tokens": 400}'])
def test_half_a_body_holds_no_place_and_leaves_nothing(server: ServerProcess, sent: bytes) -> None:
    """The last one is a whole request, but more was announced: it must not run for nobody."""
    whole = request_bytes(sent + b" " * 1000)
    with connected(server) as connection:
        connection.sendall(whole[:-1000])
        assert is_idle(server)
        assert server.api(COMPLETIONS, {"prompt": "x"}).status == 200
    wait_for(lambda: is_idle(server), 10, "nothing runs")
    assert "Traceback" not in server.log


def test_chunks_are_read_and_broken_ones_refused(server: ServerProcess) -> None:
    chunked = ("Transfer-Encoding: chunked",)
    content = json.dumps({"prompt": "ab", "max_tokens": 2}).encode()
    pieces = b"".join(b"1\r\n" + content[i : i + 1] + b"\r\n" for i in range(len(content))) + b"0\r\n\r\n"
    with connected(server) as connection:
        connection.sendall(request_bytes(pieces, headers=chunked))
        assert answer(connection)[0] == 200
        connection.sendall(request_bytes(b"zz\r\n{}\r\n", headers=chunked))
        head, body = until_closed(connection)
    assert b" 400 " in head.splitlines()[0]
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "trash",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX y: z\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_as_json_and_the_next_is_served(server: ServerProcess, trash: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(trash)
        head, body = until_closed(connection)
    assert b" 400 " in head.splitlines()[0]
    assert json.loads(body)["error"]["message"]
    with connected(server) as connection:
        connection.sendall(HEALTH)
        assert b" 200 " in connection.recv(100)


def test_trash_behind_a_request_does_not_stand_in_its_answer(server: ServerProcess) -> None:
    """The stream is cut where it is; no second head appears in it."""
    with connected(server) as connection:
        connection.sendall(request_bytes({"prompt": "abc", "max_tokens": 400, "ignore_eos": True, "stream": True}))
        connection.recv(1)
        connection.sendall(b"\x00\x01\x02\r\n\r\n")
        received = b"H" + b"".join(until_closed(connection))
    assert received.count(b"HTTP/1.1") == 1
    wait_for(lambda: is_idle(server), 10, "nothing runs")
