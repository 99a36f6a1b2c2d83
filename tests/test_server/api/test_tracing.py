"""Traces reach a collector by OTLP, with the client's context as parent; without an endpoint nothing is sent."""

from collections.abc import Callable
from typing import Any

import pytest

from forebay_server.arguments import parse_args
from forebay_server.errors import StartupError
from tests.fakes.otlp_collector import OtlpCollector
from tests.fakes.server_process import ServerProcess, wait_for

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "not to be seen in traces"


def values(span: Any) -> dict[str, Any]:
    found = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        found[attribute.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


def test_a_request_is_a_span_with_its_phases(start_server: Callable[..., ServerProcess]) -> None:
    with OtlpCollector() as collector:
        server = start_server("--otlp-traces-endpoint", collector.endpoint, "--served-model-name", "tiny")
        header = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        server.api("/v1/completions", {"prompt": SECRET, "max_tokens": 4}, header)
        server.api("/v1/chat/completions", {"messages": [], "stream": True})
        server.api("/health")
        wait_for(lambda: len(collector.spans) >= 5, 10, "spans")
        by_name = {span.name: span for span in collector.spans}
    assert set(by_name) == {"POST /v1/completions", "POST /v1/chat/completions", "queue", "prefill", "decode"}
    root = by_name["POST /v1/completions"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    told = values(root)
    assert told["gen_ai.request.model"] == "tiny"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (len(SECRET), 4)
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert told["http.response.status_code"] == 200
    phases = [by_name[name] for name in ("queue", "prefill", "decode")]
    assert {phase.parent_span_id for phase in phases} == {root.span_id}
    borders = [root.start_time_unix_nano, *[phase.end_time_unix_nano for phase in phases]]
    assert borders == sorted(borders)
    assert borders[-1] == root.end_time_unix_nano
    refused = by_name["POST /v1/chat/completions"]
    assert values(refused)["http.response.status_code"] == 400
    assert refused.trace_id.hex() != TRACE_ID
    assert all(SECRET.encode() not in span.SerializeToString() for span in collector.spans)


def test_a_collector_that_is_not_there_hurts_nobody(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server("--otlp-traces-endpoint", "http://127.0.0.1:9/v1/traces")
    assert server.api("/v1/completions", {"prompt": "x"}).status == 200


def test_an_endpoint_that_is_no_url_is_a_bad_command_line() -> None:
    with pytest.raises(StartupError, match="otlp-traces-endpoint"):
        parse_args(["--model", "m", "--otlp-traces-endpoint", "collector:4318"])
