"""The gate before a constrained answer: what may be picked while a model reasons, and when the grammar begins."""

import numpy as np

from forebay_server.engine.thinking_gate import Marks, ThinkingGate

TOKENS = [b"<think>", b"</think>", b"<", b"think", b">", b"</", b"a", b" ", b"\n", b">\n", b">x", b"<th", b"<end>", b""]
END = TOKENS.index(b"<end>")
MARKS = Marks("<think>", "</think>", TOKENS, [END])


def gate_after(*texts: bytes, is_open: bool) -> ThinkingGate:
    gate = ThinkingGate(MARKS, is_open=is_open)
    for text in texts:
        gate.push(TOKENS.index(text))
    return gate


def allowed(gate: ThinkingGate, *answer: bytes) -> set[bytes]:
    """What may follow, when the grammar itself allows `answer`."""
    row = np.zeros(1, dtype=np.uint32)
    if gate.needs_grammar:
        for text in answer:
            row[0] |= np.uint32(1 << TOKENS.index(text))
    gate.widen(row)
    return {text for token_id, text in enumerate(TOKENS) if int(row[0]) >> token_id & 1}


def test_everything_but_the_end_is_allowed_inside() -> None:
    gate = gate_after(b"a", is_open=True)
    assert allowed(gate, b"a") == set(TOKENS) - {b"<end>"}
    assert not gate.needs_grammar


def test_the_end_mark_closes_whether_it_is_one_token_or_several() -> None:
    for texts in ([b"</think>"], [b"</", b"think", b">"], [b"</", b"</", b"think", b">\n"]):
        gate = gate_after(b"a", *texts, is_open=True)
        assert gate.is_closed
        assert allowed(gate, b"a") == {b"a"}


def test_a_token_may_not_close_and_already_answer() -> None:
    gate = gate_after(b"</", b"think", is_open=True)
    assert b">x" not in allowed(gate)
    assert {b">", b">\n"} <= allowed(gate)


def test_an_answer_may_begin_with_the_start_mark_or_at_once() -> None:
    gate = ThinkingGate(MARKS, is_open=False)
    assert allowed(gate, b"a") == {b"a", b"<think>", b"<", b"<th"}
    assert gate_after(b"a", is_open=False).is_closed
    assert allowed(gate_after(b"<think>", is_open=False), b"a") == set(TOKENS) - {b"<end>"}


def test_a_start_mark_of_several_tokens_may_still_turn_out_to_be_the_answer() -> None:
    gate = gate_after(b"<", is_open=False)
    assert allowed(gate, b"a") == {b"a", b"think"}
    gate.answer_is_possible = False  # the grammar does not allow it
    assert allowed(gate, b"a") == {b"think"}
    gate = gate_after(b"<", b"a", is_open=False)
    assert gate.is_closed
    gate = gate_after(b"<", b"think", b">", is_open=False)
    assert not gate.is_closed
    assert not gate.needs_grammar
