"""What the metrics say is what the clients saw: every token, every end; and gauges go back to zero."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.background import COMPLETIONS
from tests.fakes.server_process import ServerProcess, wait_for
from tests.test_server.conftest import StartServer
from tests.test_server.test_pressure import is_idle, open_request


@pytest.fixture
def server(start_server: StartServer) -> ServerProcess:
    return start_server("--max-queued-requests", "40", fake_step_seconds="0.005")


def scrape(server: ServerProcess) -> dict[str, float]:
    """Each sample by its name, and by its reason or bound where it has one."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(server.ops("/metrics").body.decode()):
        for sample in family.samples:
            label = sample.labels.get("finished_reason") or sample.labels.get("le")
            found[sample.name + (f"[{label}]" if label else "")] = sample.value
    return found


def usage_of(reply: Any, *, stream: bool) -> Any:
    if not stream:
        return reply.json["usage"]
    chunks = [json.loads(event[6:]) for event in reply.body.decode().strip().split("\n\n")[:-1]]
    return chunks[-1]["usage"]


def test_tokens_and_ends_are_counted_as_clients_saw_them(server: ServerProcess) -> None:
    def ask(number: int) -> Any:
        body: dict[str, Any] = {"prompt": f"request {number} DEF", "max_tokens": 5 + number, "n": 1 + number % 3}
        stream = number % 2 == 1
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if number % 5 == 0:
            body["stop"] = ["q"]
        reply = server.api(COMPLETIONS, body)
        assert reply.status == 200
        return usage_of(reply, stream=stream)

    with ThreadPoolExecutor(8) as pool:
        usages = list(pool.map(ask, range(12)))
    embedded = server.api("/v1/embeddings", {"input": ["abc", "de"]}).json["usage"]
    assert server.api(COMPLETIONS, {"prompt": ""}).status == 400
    leaving = open_request(server, stream=True)
    wait_for(lambda: server.load()["running"] == 1, 10, "it runs")
    leaving.close()
    wait_for(lambda: is_idle(server), 5, "idle")
    found = scrape(server)
    num_choices = sum(1 + number % 3 for number in range(12))
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages) + embedded["prompt_tokens"] + len("abc")
    for prefix in ("forebay_", "vllm:"):
        assert found[f"{prefix}prompt_tokens_total"] == prompt_tokens
        ends = {reason: found[f"{prefix}request_success_total[{reason}]"] for reason in ("abort", "error")}
        assert ends == {"abort": 1, "error": 0}
        answered = found[f"{prefix}request_success_total[stop]"] + found[f"{prefix}request_success_total[length]"]
        assert answered == num_choices + 2
        assert found[f"{prefix}e2e_request_latency_seconds_count"] == num_choices + 3
        assert found[f"{prefix}request_params_n_sum"] == num_choices + 1
        assert found[f"{prefix}request_generation_tokens_sum"] == found[f"{prefix}generation_tokens_total"]
    completion_tokens = sum(usage["completion_tokens"] for usage in usages)
    aborted_tokens = found["forebay_generation_tokens_total"] - completion_tokens
    assert 0 < aborted_tokens <= 400, "of the stream that was left"
    for gauge in ("num_requests_running", "num_requests_waiting"):
        assert found[f"forebay_{gauge}"] == found[f"vllm:{gauge}"] == 0
    assert found["forebay_kv_cache_usage_ratio"] == found["vllm:kv_cache_usage_perc"] == 0
    assert found["vllm:gpu_cache_usage_perc"] == 0


def test_histograms_are_cumulative_and_end_with_their_count(server: ServerProcess) -> None:
    for number in range(5):
        assert server.api(COMPLETIONS, {"prompt": "abcdef", "max_tokens": 3 + number}).status == 200
    found = scrape(server)
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_generation_tokens"):
        bounds = [(key, value) for key, value in found.items() if key.startswith(f"forebay_{name}_bucket[")]
        counts = [value for _, value in bounds]
        assert counts == sorted(counts)
        assert counts[-1] == found[f"forebay_{name}_count"]
    assert found["forebay_time_to_first_token_seconds_count"] == 5
    assert found["forebay_inter_token_latency_seconds_count"] == found["forebay_generation_tokens_total"] - 5
    assert found["vllm:time_per_output_token_seconds_count"] == found["vllm:inter_token_latency_seconds_count"]
    assert found["forebay_request_time_per_output_token_seconds_count"] == 5
    assert found["forebay_request_max_num_generation_tokens_sum"] == found["forebay_generation_tokens_total"]


def test_refusals_for_a_full_queue_are_counted(start_server: StartServer) -> None:
    server = start_server("--max-queued-requests", "40", fake_step_seconds="0.2")
    first = open_request(server, stream=True, n=40)
    wait_for(lambda: server.load()["running"] > 0, 10, "it runs")
    for _ in range(3):
        assert server.api(COMPLETIONS, {"prompt": "abc"}).status == 429
    assert scrape(server)["forebay_admission_rejections_total"] == 3
    first.close()
