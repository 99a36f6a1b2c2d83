"""The engine process from outside: ready, answers, faults, its end and its parent's."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from forebay_server.config import EngineConfig
from forebay_server.launch import NICENESS, EngineLaunch, child_command, start_child
from forebay_server.messages import (
    AbortRequests,
    AddRequest,
    EngineFailed,
    EngineReady,
    RequestOutput,
    Shutdown,
    StepOutputs,
    ToApi,
    ToEngine,
)
from forebay_server.ops.shared_state import Phase, SharedState
from forebay_server.sampling_params import SamplingParams
from tests.test_server.models.tiny_llama import save_tiny_llama

TIMEOUT_MS = 60_000


class EngineUnderTest:
    """The API process's side of one engine process."""

    def __init__(self, model: Path, sockets: Path) -> None:
        self.context = zmq.Context()
        self.requests = self.context.socket(zmq.PUSH)
        self.requests.bind(f"ipc://{sockets}/requests")
        self.outputs = self.context.socket(zmq.PULL)
        self.outputs.bind(f"ipc://{sockets}/outputs")
        self.state = SharedState.create()
        self.launch = EngineLaunch(
            config=EngineConfig(model=str(model), dtype="float32", kv_cache_tokens=1024),
            request_address=f"ipc://{sockets}/requests",
            output_address=f"ipc://{sockets}/outputs",
            state_fd=self.state.file_descriptor,
            parent_pid=os.getpid(),
        )
        self.process = start_child("forebay_server.engine.process", self.launch, [self.state.file_descriptor])

    def send(self, message: ToEngine) -> None:
        self.requests.send(msgspec.msgpack.encode(message))

    def receive(self) -> ToApi:
        assert self.outputs.poll(TIMEOUT_MS), "the engine says nothing"
        message: ToApi = msgspec.msgpack.decode(self.outputs.recv(), type=ToApi)
        return message

    def outputs_until_end(self, *request_ids: str) -> dict[str, list[RequestOutput]]:
        outputs: dict[str, list[RequestOutput]] = {request_id: [] for request_id in request_ids}
        while not all(news and news[-1].finish_reason for news in outputs.values()):
            message = self.receive()
            assert isinstance(message, StepOutputs)
            for output in message.outputs:
                outputs[output.request_id].append(output)
        return outputs

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.context.destroy(linger=0)


StartEngine = Callable[[Path], EngineUnderTest]


@pytest.fixture
def start_engine(tmp_path: Path) -> Iterator[StartEngine]:
    started: list[EngineUnderTest] = []

    def start(model: Path) -> EngineUnderTest:
        started.append(EngineUnderTest(model, tmp_path))
        return started[-1]

    yield start
    for engine in started:
        engine.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save_tiny_llama(tmp_path / "tiny")


def request(request_id: str, **params: Any) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=[5, 6, 7],
        sampling=SamplingParams(**{"max_tokens": 5, "temperature": 0, "ignore_eos": True} | params),
        arrival_time=time.monotonic(),
    )


def test_life_of_an_engine_process(tiny: Path, start_engine: StartEngine) -> None:
    engine = start_engine(tiny)
    ready = engine.receive()
    assert isinstance(ready, EngineReady)
    assert (ready.num_blocks, ready.block_size, ready.kv_cache_tokens) == (64, 16, 1024)
    assert (ready.dtype, ready.device, ready.max_model_len, ready.vocab_size) == ("float32", "cpu", 512, 128)
    assert engine.state.get("phase") == Phase.SERVING
    assert engine.state.get("bytes_done") == engine.state.get("bytes_total") > 0

    threads = [int(task.name) for task in Path(f"/proc/{engine.process.pid}/task").iterdir()]
    expected = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {expected}, "the engine gives way"

    engine.send(request("a"))
    answer = engine.outputs_until_end("a")["a"]
    assert [len(output.token_ids) for output in answer] == [1] * 5
    assert answer[-1].finish_reason == "length"
    assert 0 <= (answer[0].queue_seconds or -1) < 10

    engine.requests.send(b"\xc1 no msgpack")  # unreadable: dropped
    engine.requests.send(msgspec.msgpack.encode({"type": "AddRequest", "request_id": 5}))
    engine.send(request("long", max_tokens=500))
    engine.send(request("b"))
    engine.send(AbortRequests(["long", "unknown"]))
    outputs = engine.outputs_until_end("long", "b")
    assert outputs["long"][-1].finish_reason in ("abort", "length")
    assert [output.token_ids for output in outputs["b"]] == [output.token_ids for output in answer]

    snapshot = engine.state.snapshot()
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.kv_used_blocks) == (0, 0, 0)
    assert snapshot.prefix_cache_queries in (6, 9)  # the aborted one may never have run

    engine.send(Shutdown())
    assert engine.process.wait(timeout=20) == 0


def test_idle_engine_uses_no_cpu(tiny: Path, start_engine: StartEngine) -> None:
    engine = start_engine(tiny)
    engine.receive()

    def cpu_seconds() -> float:
        fields = Path(f"/proc/{engine.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    time.sleep(0.3)
    before = cpu_seconds()
    time.sleep(2)
    assert cpu_seconds() - before <= 0.05


def test_engine_that_cannot_start_says_why_and_exits_with_the_code(tmp_path: Path, start_engine: StartEngine) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("I am not a model, I am a text file that is called one")
    engine = start_engine(file)
    failed = engine.receive()
    assert isinstance(failed, EngineFailed)
    assert (failed.exit_code, failed.reason) == (16, "CorruptWeights")
    assert str(file) in failed.message
    assert engine.process.wait(timeout=20) == 16


def test_engine_ends_with_its_parent(tiny: Path, tmp_path: Path) -> None:
    """A stand-in for the API process starts an engine, reports that it is ready, and is killed."""
    script = f"""
import sys, time
sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from tests.test_server.engine.test_engine_process import EngineUnderTest
engine = EngineUnderTest(Path({str(tiny)!r}), Path({str(tmp_path)!r}))
engine.receive()
print(engine.process.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    engine_pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while is_alive(engine_pid):
        assert time.monotonic() < deadline, "the engine outlives its parent"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_help_says_what_the_process_is() -> None:
    launch = EngineLaunch(
        config=EngineConfig(model="m"), request_address="a", output_address="b", state_fd=3, parent_pid=1
    )
    command = [*child_command("forebay_server.engine.process", launch)[:3], "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "forebay serve" in result.stdout


def test_package_and_engine_entry_do_not_import_torch() -> None:
    code = "import sys, forebay_server, forebay_server.engine.process; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_what_torch_is_imported_without_is_there_for_whoever_imports_it_later() -> None:
    code = """
from forebay_server.engine import process
process._import_torch()
import torch
print(hasattr(torch, "distributions"))
import torch.distributions, torch.quantization, torch._meta_registrations
found = torch.distributions.Normal, torch.quantization.QConfig, torch._meta_registrations.register_meta
print(*(item.__name__ for item in found))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "Normal", "QConfig", "register_meta"]
