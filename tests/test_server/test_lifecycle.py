"""How a server starts and ends: ports, progress, drain, exit codes, the termination message. With the fake engine."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.fakes.background import COMPLETIONS, Background
from tests.fakes.server_process import FAKE, ServerProcess, wait_for
from tests.test_server.conftest import StartServer

SLOW = {"fake_step_seconds": "0.05"}


def test_ports_answer_while_loading(start_server: StartServer) -> None:
    server = start_server(wait_seconds=0, fake_load_seconds="3")
    server.wait_until_listening()
    assert server.ops("/livez").status == 200
    not_ready = server.ops("/readyz")
    assert not_ready.status == 503
    assert not_ready.json["reason"] == "Loading"
    wait_for(lambda: server.ops("/startupz").json["bytesDone"] == 500, 10, "progress shows")
    progress = server.ops("/startupz").json
    assert progress["phase"] == "loading"
    assert progress["bytesTotal"] == 1000
    assert "measured" not in progress
    refused = server.api(COMPLETIONS, {"prompt": "x"})
    assert refused.status == 503
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.json["error"]["code"] == "model_loading"
    assert server.api("/health").status == 503
    assert server.api("/metrics").status == 200
    server.wait_until_ready(20)
    assert server.api(COMPLETIONS, {"prompt": "x"}).status == 200


def test_sigterm_while_loading_ends_at_once(start_server: StartServer) -> None:
    server = start_server(wait_seconds=0, fake_load_seconds="60")
    server.wait_until_listening()
    server.signal(signal.SIGTERM)
    assert server.wait(5) == 0


def test_the_plan_stands_beside_what_was_measured(start_server: StartServer, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"weightBytes": 999}))
    report = start_server("--plan-file", str(plan)).ops("/startupz").json
    assert report["phase"] == "serving"
    assert report["planned"] == {"weightBytes": 999}
    assert report["measured"]["weightBytes"] == 1000
    assert report["measured"]["kvCacheTokens"] == 1024


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(start_server: StartServer) -> None:
    server = start_server(**SLOW)
    running = Background(server, 40, stream=True)
    server.signal(signal.SIGTERM)
    wait_for(lambda: server.ops("/readyz").status == 503, 2, "not ready at once")
    assert server.ops("/readyz").json["reason"] == "Draining"
    assert server.ops("/startupz").json["phase"] == "draining"
    assert server.ops("/livez").status == 200
    refused = server.api(COMPLETIONS, {"prompt": "x"})
    assert refused.status == 503
    assert refused.json["error"]["code"] == "draining"
    assert int(refused.headers["Retry-After"]) > 0
    reply = running.result()
    assert reply.body.count(b'"text"') == 40
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert server.wait(5) == 0
    assert server.termination is None


def test_the_drain_timeout_cuts_what_still_runs(start_server: StartServer) -> None:
    server = start_server("--drain-timeout", "0.5", **SLOW)
    running = Background(server, 400)
    server.signal(signal.SIGTERM)
    assert server.wait(8) == 0
    reply = running.result()
    assert reply.status == 503
    assert reply.json["error"]["code"] == "drain_timeout"


def test_a_second_signal_stops_at_once(start_server: StartServer) -> None:
    server = start_server(**SLOW)
    running = Background(server, 400, stream=True)
    server.signal(signal.SIGTERM)
    wait_for(lambda: server.ops("/readyz").status == 503, 5, "draining")
    server.signal(signal.SIGINT)
    assert server.wait(5) == 130
    running.join()
    assert running.reply is None, "it was cut off"


def test_a_hung_api_process_fails_the_liveness_probe(start_server: StartServer) -> None:
    server = start_server("--hang-timeout", "1")
    server.signal(signal.SIGSTOP)
    wait_for(lambda: server.ops("/livez").status == 503, 10, "livez fails")
    assert server.ops("/livez").json["reason"] == "ApiHung"
    assert server.ops("/metrics").status == 200


def test_children_end_when_the_api_process_is_killed(start_server: StartServer) -> None:
    server = start_server()
    engine = server.engine_pid()
    server.signal(signal.SIGKILL)
    server.wait(5)
    wait_for(lambda: not Path(f"/proc/{engine}").exists(), 5, "the engine is gone")
    wait_for(lambda: not is_listening(server.ops_port), 5, "the ops process is gone")


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_killed_ops_process_comes_back_on_its_port(start_server: StartServer) -> None:
    server = start_server()
    ops = [pid for pid in children_of(server.process.pid) if pid != server.engine_pid()]
    os.kill(ops[0], signal.SIGKILL)
    time.sleep(0.3)
    assert server.ops("/readyz").status == 200


def children_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


def test_a_failed_engine_hands_on_its_exit_code_and_reason(start_server: StartServer) -> None:
    failure = {
        "exit_code": 13,
        "reason": "WeightsDoNotFit",
        "message": "the weights need 5 GB",
        "need_bytes": 5,
        "have_bytes": 4,
        "suggestion": "take int8",
    }
    server = start_server(wait_seconds=0, fake_failure=json.dumps(failure))
    assert server.wait(20) == 13
    assert server.termination == {
        "reason": "WeightsDoNotFit",
        "message": "the weights need 5 GB",
        "needBytes": 5,
        "haveBytes": 4,
        "suggestion": "take int8",
    }
    last_line = server.log.strip().splitlines()[-1]
    assert last_line == "forebay serve: error: the weights need 5 GB (take int8) [WeightsDoNotFit, exit 13]"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "reason", "words"),
    [
        (["--model", "/nowhere/model.gguf"], 11, "ModelNotFound", "/nowhere/model.gguf"),
        (["--model", "{tmp}/empty"], 11, "ModelNotFound", "no config.json"),
        (["--model", "{tmp}/broken.gguf"], 16, "CorruptWeights", "broken.gguf"),
        (["--model", "{tmp}/bad-tokenizer"], 16, "CorruptModelFile", "tokenizer.json"),
        (["--model", "x", "--pipeline-parallel-size", "0"], 2, "BadConfiguration", "--pipeline-parallel-size"),
        (["--model", "x", "--no-such-flag"], 2, "BadConfiguration", "--no-such-flag"),
        ([], 2, "BadConfiguration", "--model"),
        (["--model", "hf://a/b"], 2, "BadConfiguration", "hf://a/b"),
    ],
)
def test_exit_codes_of_a_server_that_cannot_start(
    tmp_path: Path, arguments: list[str], exit_code: int, reason: str, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.gguf").write_bytes(b"GGML" + bytes(100))
    (tmp_path / "bad-tokenizer").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "bad-tokenizer" / name).write_text("{}" if name == "config.json" else "{nonsense")
    server = ServerProcess(
        tmp_path,
        [argument.replace("{tmp}", str(tmp_path)) for argument in arguments],
        program=FAKE,
        environment={"FAKE_LOAD_SECONDS": "20"},
        wait_seconds=0,
    )
    try:
        assert server.wait(20) == exit_code
        assert server.termination["reason"] == reason
        assert words in server.termination["message"]
        assert words in server.log
        assert "Traceback" not in server.log
    finally:
        server.close()


def test_a_port_in_use_is_told(start_server: StartServer) -> None:
    first = start_server()
    second = start_server("--port", str(first.ops_port), wait_seconds=0)
    assert second.wait(10) == 2
    assert f"--port {first.ops_port}" in second.log
