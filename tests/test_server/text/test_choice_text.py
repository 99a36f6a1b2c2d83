"""The text of one choice: the same however the engine's tokens are cut into outputs; the earliest end wins."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_server.messages import RequestOutput
from forebay_server.text.choice_text import ChoiceText
from forebay_server.text.model_text import load_model_text
from forebay_server.text.tokenizer import Tokenizer
from tests.fakes.tiny_model import END_TOKEN_ID, write_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_model_text(write_tiny_model(tmp_path_factory.mktemp("tiny"))).tokenizer


def run(tokenizer: Tokenizer, outputs: list[RequestOutput], **options: Any) -> tuple[str, str | None, Any, int]:
    """Text, finish reason, stop reason and counted tokens."""
    choice = ChoiceText(tokenizer, **options)
    text, num_tokens = "", 0
    for output in outputs:
        update = choice.push(output)
        text += update.text
        num_tokens += update.num_tokens
        assert len(update.text_offsets) == update.num_tokens
        if update.finish_reason is not None:
            return text, update.finish_reason, update.stop_reason, num_tokens
    raise AssertionError("it never ended")


def cut(token_ids: list[int], sizes: list[int], **last: Any) -> list[RequestOutput]:
    outputs = []
    rest = token_ids
    for size in sizes:
        if size < len(rest):
            outputs.append(RequestOutput(request_id="r", token_ids=rest[:size]))
            rest = rest[size:]
    return [*outputs, RequestOutput(request_id="r", token_ids=rest, **last)]


@settings(deadline=None)
@given(
    token_ids=st.lists(st.integers(0, 257), min_size=1, max_size=30),
    sizes=st.lists(st.integers(1, 7), max_size=12),
    stop=st.lists(st.text(alphabet="abDEF\ufffd", min_size=1, max_size=3), max_size=2),
)
def test_the_cut_into_outputs_does_not_matter(
    tokenizer: Tokenizer, token_ids: list[int], sizes: list[int], stop: list[str]
) -> None:
    whole = run(tokenizer, cut(token_ids, [], finish_reason="length"), stop=stop)
    single = run(tokenizer, cut(token_ids, [1] * len(token_ids), finish_reason="length"), stop=stop)
    assert run(tokenizer, cut(token_ids, sizes, finish_reason="length"), stop=stop) == whole == single
    if not stop:
        assert whole[0] == tokenizer.decode(token_ids)
        assert whole[1:] == ("length", None, len(token_ids))


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def test_a_stop_string_before_the_end_token_wins(tokenizer: Tokenizer) -> None:
    tokens = [*ids(tokenizer, "abXcd"), END_TOKEN_ID]
    outputs = cut(tokens, [], finish_reason="stop", stop_token_id=END_TOKEN_ID)
    assert run(tokenizer, outputs, stop=["X"]) == ("ab", "stop", "X", 3)
    assert run(tokenizer, outputs) == ("abXcd", "stop", None, 6)


def test_a_stop_token_is_told_and_has_no_text(tokenizer: Tokenizer) -> None:
    tokens = ids(tokenizer, "abc")
    outputs = cut(tokens, [], finish_reason="stop", stop_token_id=tokens[-1])
    assert run(tokenizer, outputs) == ("ab", "stop", tokens[-1], 3)
    assert run(tokenizer, outputs, include_stop=True) == ("abc", "stop", tokens[-1], 3)


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    outputs = cut(ids(tokenizer, "aXbXc"), [], finish_reason="length")
    assert run(tokenizer, outputs, stop=["X"], min_tokens=2)[0] == "aXb"


def test_control_tokens_have_text_only_on_demand(tokenizer: Tokenizer) -> None:
    outputs = cut([*ids(tokenizer, "a"), END_TOKEN_ID, *ids(tokenizer, "b")], [], finish_reason="length")
    assert run(tokenizer, outputs)[0] == "ab"
    assert run(tokenizer, outputs, skip_special_tokens=False)[0] == "a<|end|>b"


def test_a_run_of_stray_bytes_is_shown_at_once(tokenizer: Tokenizer) -> None:
    """sglang #8031: a lone continuation byte can never become a character, so nothing waits for it."""
    (stray,) = {ids(tokenizer, "é")[1]}
    choice = ChoiceText(tokenizer)
    for _ in range(100):
        assert choice.push(RequestOutput(request_id="r", token_ids=[stray])).text == "\ufffd"


def test_t7_a_stop_string_inside_a_step_that_also_reaches_the_length_wins(tokenizer: Tokenizer) -> None:
    """sglang PR #30291: several tokens in one output, as speculation brings them."""
    outputs = cut(ids(tokenizer, "abXcd"), [1], finish_reason="length")
    assert run(tokenizer, outputs, stop=["bX"]) == ("a", "stop", "bX", 3)
