"""`forebay bench engine` on a small random model, and the arithmetic of its policies."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_server.bench.engine_command import main
from forebay_server.bench.memory_floor import read_seconds, rss_anon_bytes, seconds_since_process_start
from forebay_server.bench.scheduling import MixedRequest, kv_waste, num_admitted, run_policy
from forebay_server.llm import LLM
from tests.test_server.models.tiny_llama import save_tiny_llama, tiny_config


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("shape") / "shape.json"
    file.write_text(json.dumps(tiny_config()))
    return file


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_shape_is_measured_without_a_checkpoint(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--batch-sizes", "1", "3", "--prefill-tokens", "20", "--prompt-tokens", "8", "--new-tokens", "4")
    found = run(capsys, "--random-weights", str(config_file), *sizes, "--repetitions", "1")
    assert [(one["name"], one["batch_size"], one["num_tokens"]) for one in found["figures"]] == [
        ("prefill", 1, 20),
        ("decode", 1, 4),
        ("decode", 3, 12),
    ]
    for figure in found["figures"]:
        assert figure["tokens_per_second"] == pytest.approx(figure["num_tokens"] / figure["seconds"])
    assert found["floor"]["bytes"] == found["loaded"]["weight_bytes"]
    assert found["floor"]["share"] > 0
    assert found["loaded"]["rss_anon_bytes"] > 0


def test_the_mix_is_served_by_every_policy(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mix = ("--mix-requests", "10", "--mix-scale", "0.03", "--mix-slots", "2")
    found = run(capsys, "--random-weights", str(config_file), "--scheduling", *mix)
    by_policy = {one["policy"]: one for one in found["policies"]}
    assert set(by_policy) == {"static", "contiguous", "paged"}
    assert by_policy["static"]["peak_sequences"] <= 2
    assert by_policy["contiguous"]["peak_sequences"] <= 2 < by_policy["paged"]["peak_sequences"]
    assert by_policy["paged"]["kv_waste"] < by_policy["contiguous"]["kv_waste"]
    assert all(one["latency"]["count"] == 10 for one in by_policy.values())


def test_policies_hand_over_by_their_rules(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path)
    llm = LLM(str(model), dtype="float32", kv_cache_tokens=64, max_num_seqs=8)
    mix = [MixedRequest([1, 2, 3], 2), MixedRequest([4, 5, 6], 9), MixedRequest([7, 8], 2), MixedRequest([9], 9)]
    steps = {policy: run_policy(llm.engine, policy, mix, 32) for policy in ("static", "contiguous", "paged")}
    assert steps["static"].peak_sequences == steps["contiguous"].peak_sequences == 2
    assert steps["paged"].peak_sequences == 4
    assert steps["static"].mean_sequences < steps["contiguous"].mean_sequences < steps["paged"].mean_sequences
    assert not llm.engine.has_work


@given(st.integers(0, 20), st.integers(1, 20))
def test_how_many_are_admitted(num_running: int, num_slots: int) -> None:
    assert num_admitted("static", num_running, num_slots) == (0 if num_running else num_slots)
    assert num_running + num_admitted("contiguous", num_running, num_slots) == max(num_running, num_slots)
    assert num_admitted("paged", num_running, num_slots) > 1000


@given(st.lists(st.integers(1, 512), min_size=1, max_size=20))
def test_paging_wastes_less_than_a_block_a_sequence(lengths: list[int]) -> None:
    waste = kv_waste("paged", lengths, 512, 16)
    assert 0 <= waste < 1
    assert waste * sum(-(-length // 16) * 16 for length in lengths) < 16 * len(lengths)
    assert waste <= kv_waste("contiguous", lengths, 512, 16)


def test_a_read_takes_time_and_more_bytes_take_more() -> None:
    assert 0 < read_seconds(1 << 16, 3) < read_seconds(1 << 28, 3)


def test_what_the_system_tells_of_this_process(tmp_path: Path) -> None:
    anonymous = rss_anon_bytes()
    assert anonymous is not None
    assert anonymous > 10_000_000
    lived = seconds_since_process_start()
    assert lived is not None
    assert lived > 0
    status = tmp_path / "status"
    status.write_text("Name:\tx\nRssAnon:\t    123 kB\n")
    assert rss_anon_bytes(status) == 123 * 1024
    assert rss_anon_bytes(tmp_path / "nothing") is None
    assert seconds_since_process_start(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        ("{", 2, "--random-weights"),
        ("[]", 2, "is not a JSON object"),
        ('{"vocab_size": 10}', 16, "hidden_size"),
    ],
)
def test_bad_shapes_are_named(
    tmp_path: Path, content: str, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shape.json"
    file.write_text(content)
    assert main(["--random-weights", str(file)]) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["--model", "a", "--random-weights", "b"], ["--model", "a", "--scheduling", "lucky"]]
)
def test_bad_command_lines(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_a_missing_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "/nowhere"]) == 11
    assert "/nowhere" in capsys.readouterr().err
