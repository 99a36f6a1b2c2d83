"""Schemathesis tries every route with what the OpenAPI page allows, and with what it does not."""

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fakes.server_process import ServerProcess

NUM_EXAMPLES = int(os.environ.get("FOREBAY_SCHEMATHESIS_EXAMPLES", "15"))
"""For each route and mode; more on demand."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    missing_required_header,
    ignored_auth,
]
"""All but two: a page cannot say that one field needs another, so that what it allows may be refused
(positive_data_acceptance); and a POST without JSON is told so before it is told that nothing is posted there
(unsupported_method)."""
ROUTES = [
    ("GET", "/health"),
    ("GET", "/load"),
    ("GET", "/metrics"),
    ("GET", "/tokenizer_info"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/version"),
    ("POST", "/detokenize"),
    ("POST", "/tokenize"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
]


@pytest.fixture(scope="module")
def page(server: ServerProcess) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_dict(server.api("/openapi.json").json)


def test_no_route_is_left_out(page: schemathesis.BaseSchema) -> None:
    found = [result.ok() for result in page.get_all_operations() if isinstance(result, Ok)]
    assert sorted((operation.method.upper(), operation.path) for operation in found) == ROUTES


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        *((*route, GenerationMode.POSITIVE) for route in ROUTES),
        *((*route, GenerationMode.NEGATIVE) for route in ROUTES if route[0] == "POST"),
    ],
)
def test_every_route_answers_as_described(
    server: ServerProcess, page: schemathesis.BaseSchema, method: str, path: str, mode: GenerationMode
) -> None:
    @given(page[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(f"http://127.0.0.1:{server.port}", checks=CHECKS, timeout=60)

    check()
