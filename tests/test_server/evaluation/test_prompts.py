"""Prompt files: every form of a line, and what is said about a bad one."""

from pathlib import Path

import pytest

from forebay_server.evaluation.prompts import PromptFileError, PromptTokenizer, read_prompts

PLAIN = PromptTokenizer(lambda text: list(text.encode()), None)
CHAT = PromptTokenizer(PLAIN.encode, lambda messages: [len(messages), 99])


def test_the_prompts_of_the_package_are_many_short_and_different() -> None:
    prompts = read_prompts(None, PLAIN, 4096)
    assert len(prompts) >= 100
    assert len({bytes(prompt) for prompt in prompts}) == len(prompts)
    assert max(map(len, prompts)) < 400


def test_every_form_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(
        '"ab"\n{"prompt": "c"}\n\n{"text": "d", "id": 7}\n{"prompt_token_ids": [5, 6]}\n'
        '{"messages": [{"role": "user", "content": "x"}]}\n'
    )
    assert read_prompts(str(file), CHAT, 10) == [[97, 98], [99], [100], [5, 6], [1, 99]]


def test_long_prompts_are_cut(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('"abcdef"\n')
    assert read_prompts(str(file), PLAIN, 3) == [[97, 98, 99]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no prompts"),
        ('""\n', "has no prompts"),
        ('"a"\nnot json\n', "line 2: is not JSON"),
        ('{"question": "a"}\n', "line 1: has no `prompt`"),
        ('{"prompt_token_ids": [1, "a"]}\n', "line 1: has no `prompt`"),
        ('{"messages": []}\n', "line 1: has messages, but the model has no chat template"),
        ("17\n", "line 1: has no `prompt`"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(content)
    with pytest.raises(PromptFileError, match=r"p\.jsonl") as raised:
        read_prompts(str(file), PLAIN, 10)
    assert said in str(raised.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(PromptFileError, match=r"--prompts nowhere\.jsonl"):
        read_prompts("nowhere.jsonl", PLAIN, 10)
