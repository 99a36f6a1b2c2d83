"""The comparison with peers: its arithmetic, and that who is not here is never beaten."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks.compare_peers import PeerError, Worker, main
from benchmarks.peers import table
from benchmarks.peers.installation import Model, PeerFolder, llama_cpp_options
from benchmarks.peers.worker import Setup

FAST, SLOW = table.Speeds(100.0, 400.0, 0.1, 0.0), table.Speeds(40.0, 200.0, 0.2, 0.0)


def test_decoding_is_what_comes_after_the_first_token() -> None:
    found = table.speeds(table.Timings([0.2, 0.1, 0.3], [1.2, 0.9, 9.0], [4.0, 2.0, 3.0]), 11, 3)
    assert found.first_token_seconds == 0.2
    assert found.decode_tokens_per_second == pytest.approx(10 / 1.0)
    assert found.streams_tokens_per_second == pytest.approx(11)
    assert found.spread == pytest.approx((9.0 - 0.9) / 1.2)


def test_impossible_timings_are_refused() -> None:
    with pytest.raises(ValueError, match="first one"):
        table.speeds(table.Timings([1.0], [0.9], [1.0]), 64, 16)


def test_targets_are_held_against_their_peer() -> None:
    found = {v.target: v for v in table.verdicts({table.OURS_8: FAST, table.OPENVINO: SLOW, table.VLLM: SLOW})}
    by_peer = {
        (target.measure, target.peers[0] if len(target.peers) == 1 else "best"): verdict
        for target, verdict in found.items()
        if target.ours == table.OURS_8
    }
    assert by_peer[table.DECODE, table.OPENVINO].met is True
    assert by_peer[table.DECODE, table.OPENVINO].ratio == pytest.approx(2.5)
    assert by_peer[table.DECODE, table.VLLM].met is False
    assert by_peer[table.THROUGHPUT, table.OPENVINO].ratio == pytest.approx(2.0)
    first = by_peer[table.FIRST_TOKEN, "best"]
    assert first.met is True
    assert first.ratio == pytest.approx(0.5)
    assert "not here: llama.cpp" in first.against


def test_the_best_peer_is_the_one_with_the_shortest_time() -> None:
    found = table.verdicts({table.OURS_8: SLOW, table.OPENVINO: FAST, table.VLLM: SLOW})
    first = next(v for v in found if v.target.measure == table.FIRST_TOKEN)
    assert first.ratio == pytest.approx(2.0)
    assert first.met is False
    assert first.against.startswith(table.OPENVINO)


def test_who_is_not_here_is_not_beaten() -> None:
    alone = table.verdicts({table.OURS_8: FAST})
    assert all(verdict.met is None and verdict.ratio is None for verdict in alone)
    without_us = table.verdicts({table.OPENVINO: FAST, table.LLAMA_8: FAST})
    assert all(verdict.met is None for verdict in without_us)
    shown = table.render({table.OURS_8: FAST}, {}, {table.VLLM: "no such folder"}, alone)
    assert "not here: no such folder" in shown
    assert "met," not in shown


def test_processors_that_list_amx_get_every_other_option_by_itself() -> None:
    assert "-DGGML_NATIVE=ON" in llama_cpp_options("processor: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n")
    options = llama_cpp_options("flags\t\t: fpu avx2 avx512f avx512_vnni amx_tile amx_int8\n")
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON"} <= set(options)
    assert not any("AMX" in option for option in options)


def test_names_of_models_do_not_collide(tmp_path: Path) -> None:
    folder, model = PeerFolder(tmp_path), Model(Path("/models/Small.Q4_1.gguf"))
    assert folder.model(model, "bf16").name == "Small.Q4_1-bf16"
    assert folder.model(model, "Q8_0").name == "Small.Q4_1-Q8_0.gguf"
    assert folder.model(Model(model.gguf, "1b"), "Q8_0").name == "shape-1b-Q8_0.gguf"


WORKER = """
import sys
from benchmarks.peers.worker import run

class Engine:
    version, details = "1", "made up"
    def __init__(self, setup):
        print("noise on stdout")
        self.short = setup.options.get("short")
    def generate(self, prompts, output_tokens):
        if len(prompts[0]) == 1:
            sys.exit("cannot do that")
        return len(prompts) * output_tokens - (1 if self.short else 0)

run(Engine)
"""


def start(tmp_path: Path, **options: str) -> Worker:
    setup = Setup("model", 1, 2, 10, options)
    return Worker([sys.executable, "-c", WORKER], setup, tmp_path / "log")


def test_a_worker_is_timed_and_its_noise_kept_apart(tmp_path: Path) -> None:
    worker = start(tmp_path)
    try:
        assert worker.ready == {"version": "1", "details": "made up"}
        assert worker.seconds([[1, 2], [3, 4]], 5) >= 0
        assert "noise" in (tmp_path / "log").read_text()
    finally:
        worker.close()


def test_a_worker_that_generates_too_little_does_not_count(tmp_path: Path) -> None:
    worker = start(tmp_path, short="yes")
    try:
        with pytest.raises(PeerError, match="9 tokens instead of 10"):
            worker.seconds([[1, 2], [3, 4]], 5)
    finally:
        worker.close()


def test_a_worker_that_dies_is_said_with_its_last_words(tmp_path: Path) -> None:
    worker = start(tmp_path)
    try:
        with pytest.raises(PeerError, match="cannot do that"):
            worker.seconds([[1]], 5)
    finally:
        worker.close()


def test_timings_that_contradict_each_other_cost_one_engine_not_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import compare_peers

    def measure(_: object, timings: dict[str, table.Timings], *__: object) -> None:
        timings[table.LLAMA_8] = table.Timings([1.0], [0.9], [1.0])
        timings[table.LLAMA_4] = table.Timings([0.5], [0.9], [1.0])

    class Ready:
        ready = {"details": "", "version": "1"}  # noqa: RUF012 - as a worker has it

        def close(self) -> None: ...

    workers = {name: Ready() for name in (table.LLAMA_8, table.LLAMA_4)}
    monkeypatch.setattr(compare_peers, "_start", lambda *_: (workers, {}))
    monkeypatch.setattr(compare_peers, "_measure", measure)
    assert main(["--folder", str(tmp_path), "--model", "x.gguf", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engines"].keys() == {table.LLAMA_4}
    assert "nothing can be said" in found["not_here"][table.LLAMA_8]


def test_peers_that_are_not_set_up_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engines = f"{table.OPENVINO},{table.LLAMA_8}"
    assert main(["--folder", str(tmp_path), "--model", "x.gguf", "--engines", engines, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engines"] == {}
    assert "--setup" in found["not_here"][table.OPENVINO]
    assert all(verdict["met"] is None for verdict in found["targets"])


def test_bad_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--engines", "nobody", "--model", "x.gguf"]) == 2
    assert "'nobody'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--output-tokens", "1"])
