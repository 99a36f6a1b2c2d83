"""The prefix cache as clients see it, with the real engine and a tiny model."""

from tests.fakes.server_process import ServerProcess, fetch

PROMPT = "a system prompt that fills several blocks of sixteen tokens each"


def cached_tokens(server: ServerProcess, prompt: str = PROMPT, n: int = 1) -> int:
    reply = server.api("/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0, "n": n})
    assert reply.status == 200, reply.body
    found: int = reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_reset_on_the_ops_port_forgets_what_was_cached(real_server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{real_server.ops_port}/reset_prefix_cache"
    assert [cached_tokens(real_server) for _ in range(2)] == [0, 48]
    for _ in range(2):
        assert fetch(url, method="POST").status == 200
        assert [cached_tokens(real_server) for _ in range(2)] == [0, 48]
    assert fetch(url).status == 404
    assert real_server.api("/reset_prefix_cache", {}).status == 404


def test_choices_compute_their_prompt_once(real_server: ServerProcess) -> None:
    def hits() -> float:
        lines = real_server.ops("/metrics").body.decode().splitlines()
        return float(next(line for line in lines if line.startswith("forebay_prefix_cache_hits_total")).split()[-1])

    before = hits()
    cached_tokens(real_server, "other words, so that nothing of it was cached before this", n=4)
    assert hits() - before == 3 * 48
