"""Traces of requests by OpenTelemetry, when an endpoint is configured; needs the extra `tracing`.

One span a request, with the W3C context that the client sent as its parent, and below it what the time went into:
queue, prefill, decode. Names of attributes: OpenTelemetry's semantic conventions for HTTP servers and for GenAI.
"""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_NANOSECONDS = 1_000_000_000
_GEN_AI_NAMES = {
    "model": "gen_ai.request.model",
    "id": "gen_ai.response.id",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "forebay.usage.cached_tokens",
    "first_token_seconds": "gen_ai.server.time_to_first_token",
}
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "chat",
}


class RequestTraces:
    """Sends spans to an OTLP endpoint from a thread of its own; what cannot be sent is dropped.

    Args:
        endpoint: such as `http://collector:4318/v1/traces`.
        service_version: of the server.
    """

    def __init__(self, endpoint: str, service_version: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": "forebay", "service.version": service_version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint), schedule_delay_millis=1000))
        self._tracer: Tracer = self._provider.get_tracer("forebay_server")

    def record(
        self, method: str, path: str, headers: Mapping[str, str], status: int, seconds: float, facts: Mapping[str, Any]
    ) -> None:
        """Make the spans of a request that has just ended.

        Args:
            method: of HTTP.
            path: of the URL.
            headers: of the request; `traceparent` and `tracestate` are read.
            status: of HTTP; 0 when nothing was sent.
            seconds: that it took.
            facts: see `request_facts`.
        """
        from opentelemetry import trace
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        end = time.time_ns()
        start = end - int(seconds * _NANOSECONDS)
        span = self._tracer.start_span(
            f"{method} {path}",
            context=TraceContextTextMapPropagator().extract(headers),
            kind=SpanKind.SERVER,
            attributes=_attributes(method, path, status, facts),
            start_time=start,
        )
        if status >= 500 or not status:
            span.set_status(Status(StatusCode.ERROR))
        inside = trace.set_span_in_context(span)
        for name, begin, finish in _phases(start, end, facts):
            self._tracer.start_span(name, context=inside, start_time=begin).end(finish)
        span.end(end)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _attributes(method: str, path: str, status: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    told = {"http.request.method": method, "url.path": path, "http.response.status_code": status}
    if path in _OPERATIONS:
        told["gen_ai.operation.name"] = _OPERATIONS[path]
    told |= {name: facts[key] for key, name in _GEN_AI_NAMES.items() if facts.get(key) is not None}
    return told


def _phases(start: int, end: int, facts: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """What the time went into, as far as it is known: name, begin and end in nanoseconds."""
    queue, first_token = facts.get("queue_seconds"), facts.get("first_token_seconds")
    if queue is None:
        return
    begun = min(end, start + int(queue * _NANOSECONDS))
    yield "queue", start, begun
    if first_token is not None:
        answered = min(end, max(begun, start + int(first_token * _NANOSECONDS)))
        yield "prefill", begun, answered
        yield "decode", answered, end
