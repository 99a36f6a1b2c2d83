"""Regular expressions, choices and grammars: enforced, or refused with a reason."""

import re
from typing import Any

import pytest

from forebay_server.errors import InvalidRequestError
from forebay_server.structured.constraints import Constraint, ConstraintKind
from tests.test_server.structured.random_text import random_text

PATTERNS = [
    r"^\d{3}-\d{4}$",
    "a/b+",
    r"\[x\] \{\}",
    "(yes|no)+",
    "é{2}",
    r"\w{1,5}\s",
    "[^a]{3}",
    "a|^b$",
    "^(?:Mon|Tue) [0-3]?[0-9]$",
    "(?i)yes|no",
    ".{0,4}",
    r"\S\W\D",
    r"[\s\w]{2}",
    "[à-üα-ω]{1,4}",
    r"\u00e9\x41",
    r"a\nb\tc",
    "x{2,3}?y*",
    r"[\]\[^-]{2}",
    r"(a|b)*c(?:d|e)?",
    r"-?(0|[1-9]\d{0,5})(\.\d{1,3})?",
    r"[a-z]+@[a-z]+\.(com|org)",
    "^$|x",
    "[&~|]{2}",
    "🙂|日本+",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_match_the_whole_expression(pattern: str) -> None:
    grammar = Constraint("regex", pattern, "guided_regex").rules()
    for seed in range(20):
        text = random_text(grammar, seed)
        assert text is not None
        assert re.fullmatch(pattern, text)


def test_texts_are_one_of_the_choices() -> None:
    choices = ["yes", "no", 'é\n"quoted"/', "back\\slash", "yes, but"]
    grammar = Constraint("choice", choices, "guided_choice").rules()
    drawn = {random_text(grammar, seed) for seed in range(100)}
    assert drawn <= set(choices)
    assert len(drawn) > 1


@pytest.mark.parametrize("grammar", ['start: ("a" "b"?)+', 'root ::= ("a" "b"?)+'], ids=["Lark", "GBNF"])
def test_texts_follow_a_grammar(grammar: str) -> None:
    rules = Constraint("grammar", grammar, "guided_grammar").rules()
    for seed in range(20):
        text = random_text(rules, seed)
        assert text is not None
        assert re.fullmatch("(ab?)+", text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regex", "("),
        ("regex", "[z-a]"),
        ("regex", "a{2,1}"),
        ("regex", r"(a)\1"),
        ("regex", "(?=a)"),
        ("regex", "(?!a)b"),
        ("regex", "(?<=a)b"),
        ("regex", r"\bword\b"),
        ("regex", "a^b"),
        ("regex", "[[:alpha:]]"),
        ("regex", r"(?P<n>a)(?P=n)"),
        ("regex", ""),
        ("regex", "\\"),
        ("regex", "(" * 100_000),
        ("regex", "((((((((((" * 100 + "))))))))))" * 100),
        ("regex", "\ud800"),
        ("choice", []),
        ("choice", [""]),
        ("choice", ["\ud800"]),
        ("choice", ["x"] * 10_001),
        ("grammar", ""),
        ("grammar", "start: nothing"),
        ("grammar", "start: /(/"),
        ("grammar", "root ::= ("),
        ("grammar", "root ::= nothing"),
        ("grammar", "no grammar at all"),
        ("grammar", 'start: %json {"type": "objec"}'),
        ("grammar", "start: " + "(" * 3000 + '"a"' + ")" * 3000),
    ],
)
def test_v9_what_cannot_be_compiled_is_refused(kind: ConstraintKind, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        Constraint(kind, value, "the_field").rules()
    assert refusal.value.param == "the_field"
    assert "the_field" in refusal.value.message
    assert len(refusal.value.message) < 600
