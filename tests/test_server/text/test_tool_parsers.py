"""Tool calls in texts: the same however the text is cut; text that only looks like a call stays text."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_server.text.message_parts import CallArguments, CallStart, Content, Part, merged
from forebay_server.text.tool_parsers.formats import HERMES, LLAMA3_JSON, MISTRAL, ToolFormat, tool_format
from forebay_server.text.tool_parsers.json_scanner import JsonScanner

NAMES = frozenset({"f", "get_weather"})
FORMATS = {form.name: form for form in (HERMES, LLAMA3_JSON, MISTRAL)}


def parts_of(form: ToolFormat, *pieces: str, max_calls: int | None = None) -> list[Part]:
    parser = form.parser(NAMES, max_calls)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return merged([*parts, *parser.finish()])


def call(index: int, name: str, arguments: str) -> list[Part]:
    return [CallStart(index, name), CallArguments(index, arguments)]


ARGUMENTS = '{"a": "x}\\"{", "b": [1, {"c": null}]}'
CASES: list[tuple[str, str, list[Part]]] = [
    ("hermes", "hello", [Content("hello")]),
    ("hermes", f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>', call(0, "f", ARGUMENTS)),
    (
        "hermes",
        'Sure! \n<tool_call>{"arguments": {"a":1}, "name": "f"}</tool_call>\n'
        '<tool_call>{"name":"get_weather","arguments":{}}</tool_call>  bye',
        [Content("Sure!"), *call(0, "f", '{"a": 1}'), *call(1, "get_weather", "{}"), Content("  bye")],
    ),
    ("hermes", '<tool_call><tool_call>{"name": "f", "arguments": {}}', [Content("<tool_call>"), *call(0, "f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', call(0, "f", '{"a": 1')),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', call(0, "f", "{}")),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 2}"}</tool_call>', call(0, "f", '{"a": 2}')),
    ("llama3_json", f'{{"name": "f", "parameters": {ARGUMENTS}}}', call(0, "f", ARGUMENTS)),
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {}}',
        [*call(0, "f", "{}"), *call(1, "get_weather", "{}")],
    ),
    ("llama3_json", '{"name": "f", "parameters": {}}\nDone', [*call(0, "f", "{}"), Content("\nDone")]),
    (
        "mistral",
        f'[TOOL_CALLS][{{"name": "f", "arguments": {ARGUMENTS}}}, {{"name": "get_weather", "arguments": {{}}}}]',
        [*call(0, "f", ARGUMENTS), *call(1, "get_weather", "{}")],
    ),
    (
        "mistral",
        'Yes [TOOL_CALLS]f{"a": 1}[TOOL_CALLS]get_weather[ARGS]{"b": 2}',
        [Content("Yes"), *call(0, "f", '{"a": 1}'), *call(1, "get_weather", '{"b": 2}')],
    ),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123[ARGS]{"a": {}} ok', [*call(0, "f", '{"a": {}}'), Content(" ok")]),
]


@pytest.mark.parametrize(("name", "text", "parts"), CASES)
def test_calls_are_found(name: str, text: str, parts: list[Part]) -> None:
    assert parts_of(FORMATS[name], text) == parts
    assert parts_of(FORMATS[name], *text) == parts


LOOKALIKES = [
    ("hermes", 'write <tool_call> and {"name": "f"}'),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>[1]</tool_call>"),
    ("hermes", "<tool_call>{name: f}</tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "argum'),
    ("hermes", "a < b <tool"),
    ("hermes", '{"name": "f", "arguments": {}}'),
    ("llama3_json", '{"answer": {"name": "f"}}'),
    ("llama3_json", '{"name": "unknown", "parameters": {}}'),
    ("llama3_json", '{"name": "f", "param'),
    ("llama3_json", "{ not JSON }"),
    ("llama3_json", 'I call {"name": "f", "parameters": {}}'),
    ("llama3_json", "  "),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS]unknown{}"),
    ("mistral", '[TOOL_CALLS][{"x": 1}]'),
    ("mistral", "[TOOL_CALLS] of [1, 2]"),
    ("mistral", "see [TOOL_"),
]


@pytest.mark.parametrize(("name", "text"), LOOKALIKES)
def test_text_that_only_looks_like_a_call_stays_text(name: str, text: str) -> None:
    assert parts_of(FORMATS[name], text) == [Content(text)]


def test_only_so_many_calls_are_told() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 3
    assert parts_of(HERMES, text, max_calls=1) == call(0, "f", "{}")


def test_arguments_are_told_while_they_grow() -> None:
    parser = HERMES.parser(NAMES, None)
    assert parser.push('<tool_call>{"name": "f", "arguments": {') == [CallStart(0, "f"), CallArguments(0, "{")]
    assert parser.push('"a"') == [CallArguments(0, '"a"')]


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    '{"name": "f", "arguments": {',
    "}",
]
FRAGMENTS += [
    '{"name": "get_weather", "parameters": {"a": 1}}',
    "{",
    "[",
    "]",
    '"',
    "\\",
    ", ",
    "; ",
    "\n",
    "f",
    "x",
    "<",
]


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_any_cutting_of_the_text_gives_the_same(name: str, text: str, cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    whole = parts_of(FORMATS[name], text)
    assert parts_of(FORMATS[name], *pieces) == whole
    if not any(isinstance(part, CallStart) for part in whole):
        assert whole == ([Content(text)] if text else [])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), JSON_VALUES), st.sampled_from([None, 2]))
def test_a_json_object_ends_at_its_end(value: object, indent: int | None) -> None:
    scanner = JsonScanner()
    text = json.dumps(value, indent=indent)
    for character in text[:-1]:
        scanner.push(character)
        assert not (scanner.is_done)
        assert not (scanner.is_broken)
    scanner.push(text[-1])
    assert scanner.is_done


@given(st.text(alphabet='{}[]:,"ntrufalse0123.- ', min_size=1, max_size=15).map(lambda text: "{" + text))
def test_what_json_cannot_read_never_ends_as_json(text: str) -> None:
    scanner = JsonScanner()
    read = ""
    for character in text:
        read += character
        scanner.push(character)
        if scanner.is_done or scanner.is_broken:
            break
    if scanner.is_done:
        json.loads(read)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for tool in tools %}<tool_call>{% endfor %}", "hermes"),
        ("{{ '[TOOL_CALLS]' }}{{ tools }}", "mistral"),
        ("{{ '<|python_tag|>' }}{{ tools }} ipython", "llama3_json"),
        ("{{ messages }}", "hermes"),
        (None, "hermes"),
    ],
)
def test_the_template_tells_the_format(template: str | None, expected: str) -> None:
    assert tool_format("auto", template).name == expected


def test_the_flag_beats_the_template() -> None:
    assert tool_format("mistral", "<tool_call>").name == "mistral"
