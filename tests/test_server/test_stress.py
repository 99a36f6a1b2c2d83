"""`server/benchmarks/stress.py` in short, against a server with the fake engine; an hour of it is started by hand."""

import subprocess
import sys

from tests.fakes.server_process import ROOT, ServerProcess
from tests.test_server.conftest import StartServer


def stress(server: ServerProcess, mode: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "server/benchmarks/stress.py"), mode]
    addresses = ["--url", f"http://127.0.0.1:{server.port}", "--ops-url", f"http://127.0.0.1:{server.ops_port}"]
    done = subprocess.run([*command, *addresses, *arguments], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a8_a_flood_is_answered_or_refused(start_server: StartServer) -> None:
    """vllm #18826: 2,000 at once against 100 places, at full size; times are told, not judged."""
    server = start_server("--max-queued-requests", "100", fake_step_seconds="0.01")
    told = stress(server, "flood", "--number", "2000")
    assert "429: " in told
    assert "refusals, in ms" in told


def test_a4_five_hundred_clients_that_leave_leave_nothing_behind(start_server: StartServer) -> None:
    server = start_server(fake_step_seconds="0.005")
    assert "{200: 1}" in stress(server, "aborts", "--number", "500", "--at-a-time", "64")


def test_a_short_soak_finds_no_fault(start_server: StartServer) -> None:
    server = start_server(fake_step_seconds="0.002")
    told = stress(server, "soak", "--minutes", "0.1", "--pid", str(server.process.pid))
    assert "memory grew by" in told


def test_a_fault_is_found(start_server: StartServer) -> None:
    """A server that refuses nearly everything is no place for the flood's checks: 400 is neither answer nor 429."""
    server = start_server("--max-model-len", "4")
    command = [sys.executable, str(ROOT / "server/benchmarks/stress.py"), "flood", "--number", "3"]
    addresses = ["--url", f"http://127.0.0.1:{server.port}", "--ops-url", f"http://127.0.0.1:{server.ops_port}"]
    done = subprocess.run([*command, *addresses], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "statuses: {400: 3}" in done.stderr
