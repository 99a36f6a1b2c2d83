"""Bodies that no client should send, made from seeds so that each can be made again."""

import json
import random
from collections.abc import Callable
from typing import Any

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}
FUNCTION = {"name": "look_up", "description": "x", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 3}'}}
BASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": [USER, {"role": "assistant", "content": "x"}, USER], "max_tokens": 2}),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 3, "stream": True}),
    ("/v1/completions", {"prompt": "abc", "max_tokens": 3}),
    ("/v1/completions", {"prompt": [5, 6], "max_tokens": 3, "echo": True, "logprobs": 2}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "n": 2, "stream": True}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 3}),
    ("/v1/responses", {"input": [USER], "max_output_tokens": 3, "stream": True}),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 4, "response_format": FORMAT}),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 4, "tools": TOOLS, "tool_choice": "required"}),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 4, "tools": TOOLS, "stream": True}),
    (
        "/v1/chat/completions",
        {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "content": "x", "tool_call_id": "1"},
            ],
            "max_tokens": 2,
            "tools": TOOLS,
        },
    ),
    ("/v1/completions", {"prompt": "a", "max_tokens": 4, "structured_outputs": {"regex": "[a-c]{2,9}"}}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 4, "structured_outputs": {"choice": ["yes", "no"]}}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 4, "structured_outputs": {"grammar": 'root ::= "a" root | "b"'}}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 4, "structured_outputs": {"json": SCHEMA}, "stream": True}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 4, "tools": [{"type": "function", **FUNCTION}]}),
    (
        "/v1/responses",
        {
            "input": "a",
            "max_output_tokens": 4,
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        },
    ),
    ("/tokenize", {"prompt": "abc"}),
    ("/tokenize", {"messages": [USER]}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]
FIELDS = [
    "model",
    "messages",
    "prompt",
    "input",
    "tokens",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "stream",
    "stream_options",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "ignore_eos",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "seed",
    "user",
    "cache_salt",
    "echo",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "add_special_tokens",
    "add_generation_prompt",
    "chat_template_kwargs",
    "truncate_prompt_tokens",
    "truncation_side",
    "suffix",
    "best_of",
    "tools",
    "tool_choice",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "priority",
    "encoding_format",
    "dimensions",
    "pooling",
    "instructions",
    "text",
    "reasoning",
    "include",
    "metadata",
    "store",
    "service_tier",
    "documents",
    "chat_template",
    "continue_final_message",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "role",
    "content",
    "format",
    "json",
    "regex",
    "choice",
    "grammar",
    "schema",
    "strict",
    "parameters",
    "arguments",
    "tool_calls",
    "tool_call_id",
    "refusal",
    "name",
    "previous_response_id",
    "conversation",
    "background",
    "truncation",
    "max_tool_calls",
]
_TEXTS = [
    "",
    "x",
    "\x00",
    "\ud800",
    "\udfff\ud800",
    "🙂" * 50,
    "<|end|>",
    "{{ 1 }}",
    "{% for",
    "a" * 5000,
    "(",
    "[a-",
    ".*" * 40,
]
_SCHEMA_WORDS = [
    "properties",
    "required",
    "items",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "$ref",
    "$defs",
    "enum",
    "const",
    "pattern",
    "minLength",
    "maxItems",
    "additionalProperties",
    "minimum",
]
_WORDS = [
    "#",
    "#/$defs/x",
    "object",
    "array",
    "string",
    "text",
    "json_object",
    "json_schema",
    "function",
    "auto",
    "required",
    "user",
    "-1",
]
_NUMBERS = [0, -0.0, -1, 1, 2, 0.5, 1e-308, 1e308, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 319, 320, 511, 512, 1e400]


_CONTENT_TYPES = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "\xff")


def content_type(seed: int) -> str:
    """That of the same request: mostly the right one, also written in other ways."""
    rng = random.Random(-seed - 1)
    if rng.random() < 0.04:
        return rng.choice(_CONTENT_TYPES)
    return rng.choice(("application/json", "application/json; charset=utf-8", "Application/JSON", "application/x+json"))


def random_body(seed: int) -> tuple[str, bytes]:
    """Path and body of one request."""
    rng = random.Random(seed)
    path, base = rng.choice(BASES)
    body: Any = json.loads(json.dumps(base))
    if rng.random() < 0.1:
        body = _value(rng, 4)
    else:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            rng.choice((_set_field, _set_field, _set_field, _set_inside, _drop_field))(rng, body)
    encoded = json.dumps(body, ensure_ascii=rng.random() < 0.7).encode("utf-8", "surrogatepass")
    if rng.random() < 0.25:
        encoded = rng.choice(_DAMAGES)(rng, encoded)
    return path, encoded


def _value(rng: random.Random, depth: int) -> Any:
    """Any JSON value, and NaN and Infinity, which Python also writes."""
    kind = rng.randrange(9 if depth else 6)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice([*_NUMBERS, float("nan"), float("inf"), rng.randrange(600), rng.uniform(-3, 3)])
    if kind in (3, 4):
        return rng.choice(
            [
                *_TEXTS,
                *FIELDS,
                "#",
                "#/$defs/x",
                "object",
                "array",
                "string",
                "text",
                "json_object",
                "auto",
                "required",
                "user",
                "-1",
            ]
        )
    if kind == 5:
        return rng.choice(([], {}, [[]], [{}], [None], {"": None}, {"type": "json_object"}, {"5": 100}))
    if kind in (6, 7):
        return [_value(rng, depth - 1) for _ in range(rng.choice((1, 1, 2, 5)))]
    names = [*FIELDS, *_SCHEMA_WORDS, "type", "function", "json_schema", "5", "-1", "x"]
    return {rng.choice(names): _value(rng, depth - 1) for _ in range(rng.choice((1, 2, 4)))}


def _set_field(rng: random.Random, body: dict[str, Any]) -> None:
    body[rng.choice(FIELDS)] = _value(rng, 3)


def _set_inside(rng: random.Random, body: dict[str, Any]) -> None:
    """Somewhere deeper."""
    place: Any = body
    while isinstance(place, dict | list) and place:
        key: Any = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.4:
            place[key] = _value(rng, 2)
            return
        place = place[key]


def _drop_field(rng: random.Random, body: dict[str, Any]) -> None:
    if body:
        del body[rng.choice(list(body))]


def _cut(rng: random.Random, encoded: bytes) -> bytes:
    return encoded[: rng.randrange(len(encoded) + 1)]


def _spoil(rng: random.Random, encoded: bytes) -> bytes:
    """Bytes that are no UTF-8, or no JSON, somewhere in it."""
    at = rng.randrange(len(encoded) + 1)
    return encoded[:at] + rng.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\\u12", b"\\", b'"')) + encoded[at:]


def _repeat_key(rng: random.Random, encoded: bytes) -> bytes:
    extra = json.dumps({rng.choice(FIELDS): _value(rng, 1)})[1:-1].encode()
    return b"{" + extra + b", " + encoded[1:] if encoded[:1] == b"{" and len(encoded) > 2 else encoded


def _nest(rng: random.Random, encoded: bytes) -> bytes:
    depth = rng.choice((10, 200, 1000, 20_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    deep = opening * depth + b"1" + closing * (depth if rng.random() < 0.7 else 0)
    name = rng.choice(FIELDS).encode()
    return b'{"' + name + b'": ' + deep + b", " + encoded[1:] if encoded[:1] == b"{" and len(encoded) > 2 else deep


def _swell(rng: random.Random, encoded: bytes) -> bytes:
    name = rng.choice(FIELDS).encode()
    swollen = rng.choice((b'"' + b"y" * 300_000 + b'"', b"[" + b"1," * 50_000 + b"1]", b"9" * 10_000, b'["a"' * 3))
    return (
        b'{"' + name + b'": ' + swollen + b", " + encoded[1:] if encoded[:1] == b"{" and len(encoded) > 2 else swollen
    )


_DAMAGES: list[Callable[[random.Random, bytes], bytes]] = [_cut, _spoil, _repeat_key, _nest, _swell]
