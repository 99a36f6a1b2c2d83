"""The ops port over real sockets."""

import http.client
from concurrent.futures import ThreadPoolExecutor

from tests.fakes.server_process import fetch
from tests.test_server.conftest import StartServer


def test_pages_verbs_and_many_connections(start_server: StartServer) -> None:
    server = start_server()
    for path in ("/livez", "/readyz", "/startupz", "/load", "/metrics", "/livez?verbose"):
        assert server.ops(path).status == 200, path
    missing = server.ops("/nothing")
    assert missing.status == 404
    assert "/livez" in missing.json["error"]
    url = f"http://127.0.0.1:{server.ops_port}/livez"
    head = fetch(url, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["Content-Length"]) > 0
    assert fetch(url, {"x": 1}).status == 405
    assert fetch(url, method="DELETE").status == 405
    with ThreadPoolExecutor(50) as pool:
        statuses = [reply.status for reply in pool.map(server.ops, ["/load"] * 200)]
    assert statuses == [200] * 200
    connection = http.client.HTTPConnection("127.0.0.1", server.ops_port)
    for _ in range(3):  # kept alive
        connection.request("GET", "/livez")
        assert connection.getresponse().read()
    connection.close()
