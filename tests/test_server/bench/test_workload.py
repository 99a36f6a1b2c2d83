"""What a load sends and when: lengths, prompts, arrivals."""

import itertools
import json
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_server.bench.arrivals import burst_arrivals, poisson_arrivals
from forebay_server.bench.lengths import (
    SHAREGPT_OUTPUT,
    SHAREGPT_PROMPT,
    LognormalLengths,
    UniformLengths,
    parse_lengths,
)
from forebay_server.bench.workload import Prompt, RandomWorkload, WorkloadError, read_workload, request_body


def test_poisson_arrivals_come_at_their_rate_and_grow() -> None:
    times = list(itertools.islice(poisson_arrivals(5.0, random.Random(1)), 4000))
    assert times == sorted(times)
    assert times[-1] / len(times) == pytest.approx(0.2, rel=0.05)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.1)  # exponential, not regular


def test_bursts_come_together() -> None:
    assert list(itertools.islice(burst_arrivals(3, 10.0), 7)) == [0, 0, 0, 10, 10, 10, 20]


@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 1000))
def test_uniform_lengths_stay_in_their_range(low: int, more: int, seed: int) -> None:
    lengths = UniformLengths(low, low + more)
    assert low <= lengths.draw(random.Random(seed)) <= low + more == lengths.longest


@given(st.floats(1, 1000), st.floats(0, 2), st.integers(1, 2000), st.integers(0, 1000))
def test_lognormal_lengths_are_at_least_one_and_cut(mean: float, sigma: float, longest: int, seed: int) -> None:
    assert 1 <= LognormalLengths(mean, sigma, longest).draw(random.Random(seed)) <= longest


@pytest.mark.parametrize(("lengths", "mean"), [(SHAREGPT_PROMPT, 161), (SHAREGPT_OUTPUT, 338)])
def test_chats_have_the_means_that_are_promised(lengths: LognormalLengths, mean: float) -> None:
    generator = random.Random(3)
    uncut = LognormalLengths(lengths.mean, lengths.sigma, 10**9)
    assert statistics.mean(uncut.draw(generator) for _ in range(50_000)) == pytest.approx(mean, rel=0.05)
    drawn = [lengths.draw(generator) for _ in range(5000)]
    assert statistics.median(drawn) < statistics.mean(drawn) < lengths.longest


def test_lengths_are_read() -> None:
    assert parse_lengths("256", SHAREGPT_PROMPT) == UniformLengths(256, 256)
    assert parse_lengths("100-400", SHAREGPT_PROMPT) == UniformLengths(100, 400)
    assert parse_lengths("lognormal:50,1.5,300", SHAREGPT_PROMPT) == LognormalLengths(50, 1.5, 300)
    assert parse_lengths("sharegpt", SHAREGPT_OUTPUT) is SHAREGPT_OUTPUT


@pytest.mark.parametrize("text", ["0", "-5", "4-2", "0-3", "many", "lognormal:5,1", "lognormal:0,1,5", "", "²"])
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is wanted"):
        parse_lengths(text, SHAREGPT_PROMPT)


def workload(**changes: object) -> RandomWorkload:
    fields: dict[str, object] = {
        "form": "ids",
        "prompt_lengths": UniformLengths(8, 8),
        "output_lengths": UniformLengths(4, 6),
        "vocab_size": 100,
        "seed": 0,
    }
    return RandomWorkload(**(fields | changes))  # type: ignore[arg-type]


def take(made: RandomWorkload, number: int) -> list[Prompt]:
    return list(itertools.islice(made.prompts(), number))


def test_random_prompts_repeat_with_their_seed_and_differ_among_themselves() -> None:
    prompts = take(workload(), 20)
    assert prompts == take(workload(), 20)
    assert prompts != take(workload(seed=1), 20)
    assert len({str(prompt.content) for prompt in prompts}) == 20
    assert all(prompt.num_tokens == 8 and 4 <= prompt.max_tokens <= 6 for prompt in prompts)
    assert all(0 <= token < 100 for prompt in prompts for token in prompt.content if isinstance(token, int))


def test_words_stand_for_tokens_where_ids_cannot_be_sent() -> None:
    (prompt,) = take(workload(form="text"), 1)
    assert isinstance(prompt.content, str)
    assert len(prompt.content.split()) == 8


def test_prefixes_are_shared_by_groups() -> None:
    prompts = take(workload(shared_prefix_tokens=16, num_shared_prefixes=3), 60)
    assert len({tuple(prompt.content[:16]) for prompt in prompts}) == 3
    assert len({tuple(prompt.content[16:]) for prompt in prompts}) == 60
    assert all(prompt.num_tokens == 24 for prompt in prompts)


def test_prompts_of_a_file_go_round(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    lines = ["one", {"prompt": "two", "max_tokens": 3}, {"prompt_token_ids": [4, 5]}]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    made = read_workload(str(file), UniformLengths(9, 9), 0, is_chat=False)
    prompts = list(itertools.islice(made.prompts(), 4))
    assert [prompt.content for prompt in prompts] == ["one", "two", [4, 5], "one"]
    assert [prompt.max_tokens for prompt in prompts] == [9, 3, 9, 9]
    assert prompts[2].num_tokens == 2


@pytest.mark.parametrize(
    ("line", "is_chat", "said"),
    [
        ("", False, "has no prompts"),
        ("{", False, "line 1: is not JSON"),
        ("7", False, "line 1"),
        ('{"prompt": ""}', False, "line 1: has no"),
        ('{"prompt": "a", "max_tokens": 0}', False, "max_tokens is 0"),
        ('{"messages": [{"role": "user", "content": "a"}]}', False, "--endpoint chat"),
        ('{"prompt": [1, 2]}', True, "--endpoint completions"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, line: str, is_chat: bool, said: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(WorkloadError) as raised:
        read_workload(str(file), UniformLengths(9, 9), 0, is_chat=is_chat)
    assert said in str(raised.value)
    assert str(file) in str(raised.value)


def test_bodies() -> None:
    chat = request_body(Prompt("hi", 1, 5), "m", is_chat=True, ignore_eos=False, extra={})
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    assert "ignore_eos" not in chat
    completion = request_body(Prompt([1, 2], 2, 5), "m", is_chat=False, ignore_eos=True, extra={})
    assert completion["prompt"] == [1, 2]
    assert completion["ignore_eos"] is True
    assert completion["max_tokens"] == 5
    assert completion["stream"] is True
