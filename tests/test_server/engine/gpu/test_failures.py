"""Which errors of a GPU end the engine, with which exit code; and waiting for memory. The errors are torch's own."""

import shutil
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch

from forebay_server.engine.engine import Engine
from forebay_server.engine.gpu import memory
from forebay_server.engine.gpu.failures import (
    OUT_OF_MEMORY,
    check_compiler,
    device_failure,
    failed_before_serving,
    is_out_of_memory,
    step_error,
    while_allocating,
)
from forebay_server.engine.gpu.memory import LONGEST_WAIT_SECONDS, settled, wait_for_memory
from forebay_server.engine.scheduler_output import SampledToken, SchedulerOutput
from forebay_server.errors import ExitCode, StartupError
from forebay_server.messages import AddRequest
from forebay_server.sampling_params import SamplingParams
from tests.test_server.engine.fake_engine import make_scheduler

LOST = [
    torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with ..."),
    torch.AcceleratorError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"),
    RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:123, unhandled cuda error"),
]
NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
]
OTHERS = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ValueError("CUDA error: in a sentence of ours"),
    MemoryError("out of memory"),
]


@pytest.mark.parametrize("error", LOST, ids=str)
def test_an_error_after_which_nothing_works_is_a_lost_device(error: Exception) -> None:
    failure = device_failure(error)
    assert failure is not None
    assert (failure.exit_code, failure.reason) == (ExitCode.DEVICE_LOST, "DeviceLost")
    assert str(error).splitlines()[0] in failure.message
    assert "Compile with" not in failure.message


def test_damaged_memory_is_told_with_what_helps() -> None:
    failure = device_failure(LOST[0])
    assert failure is not None
    assert "drain the node" in str(failure.suggestion)


@pytest.mark.parametrize("error", [*NO_MEMORY, *OTHERS], ids=str)
def test_other_errors_do_not_mean_a_lost_device(error: Exception) -> None:
    assert device_failure(error) is None
    assert is_out_of_memory(error) == (error in NO_MEMORY)


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
@pytest.mark.parametrize(("what", "code"), [("weights", 13), ("KV cache", 14)])
def test_too_little_memory_has_the_exit_code_of_what_did_not_fit(
    what: Literal["weights", "KV cache"], code: int, error: Exception
) -> None:
    with pytest.raises(StartupError, match=what) as raised, while_allocating(what):
        raise error
    assert raised.value.exit_code == code


def test_a_device_lost_while_loading_is_15_and_a_fault_of_ours_stays_one() -> None:
    with pytest.raises(StartupError) as raised, while_allocating("weights"):
        raise LOST[0]
    assert raised.value.exit_code == ExitCode.DEVICE_LOST
    with pytest.raises(RuntimeError, match="shapes"), while_allocating("weights"):
        raise OTHERS[0]


def test_a_first_step_without_memory_is_no_corrupt_model() -> None:
    assert failed_before_serving("warm-up", step_error(NO_MEMORY[0])).exit_code == ExitCode.KV_CACHE_DOES_NOT_FIT
    assert failed_before_serving("warm-up", step_error(OTHERS[0])).exit_code == ExitCode.CORRUPT_WEIGHTS


def test_a_gpu_without_a_compiler_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton builds its link to the driver when the first kernel starts: after minutes of loading."""
    present: set[str] = set()
    monkeypatch.setattr(shutil, "which", lambda name: name if name in present else None)
    monkeypatch.delenv("CC", raising=False)
    check_compiler(torch.device("cpu"))
    with pytest.raises(StartupError, match="C compiler") as raised:
        check_compiler(torch.device("cuda"))
    assert raised.value.exit_code == ExitCode.BAD_CONFIGURATION
    for compiler in ("gcc", "clang"):
        present = {compiler}
        check_compiler(torch.device("cuda"))
    monkeypatch.setenv("CC", "/opt/cc")
    present = {"/opt/cc"}
    check_compiler(torch.device("cuda"))


class _FailingRunner:
    """Fails each step with one error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        raise self._error


def failed_step(error: Exception) -> str | None:
    engine = Engine(make_scheduler(), _FailingRunner(error))
    engine.add(AddRequest(request_id="a", prompt_token_ids=[1, 2], sampling=SamplingParams(max_tokens=2)))
    return engine.step()[0].error


def test_a_step_without_memory_ends_its_requests_and_not_the_engine() -> None:
    assert str(failed_step(NO_MEMORY[0])).startswith(OUT_OF_MEMORY)


def test_a_step_that_loses_the_device_ends_the_engine() -> None:
    with pytest.raises(StartupError) as raised:
        failed_step(LOST[4])
    assert raised.value.exit_code == ExitCode.DEVICE_LOST


class _Time:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waited(free: Iterator[int], wanted: int) -> tuple[int, float]:
    """(free bytes in the end, seconds waited)."""
    time = _Time()
    found = settled(lambda: next(free), wanted, clock=lambda: time.now, sleep=time.sleep)
    return found, time.now - 100


def test_memory_that_suffices_is_not_waited_for() -> None:
    assert waited(iter([10]), 10) == (10, 0)


def test_a_neighbours_memory_is_waited_for_while_it_comes_free() -> None:
    assert waited(iter([1, 2, 2, 3, 9, 10]), 10)[0] == 10


def test_memory_that_stays_taken_is_not_waited_for_long() -> None:
    def stuck() -> Iterator[int]:
        while True:
            yield 4

    free, seconds = waited(stuck(), 10)
    assert (free, seconds <= 4) == (4, True)


def test_the_wait_has_a_bound_however_slowly_memory_comes_free() -> None:
    free, seconds = waited(iter(range(1_000_000)), 10**9)
    assert seconds == pytest.approx(LONGEST_WAIT_SECONDS, abs=1)
    assert free > 0


def test_only_gpus_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    waits: list[int] = []

    def mem_get_info(device: torch.device) -> tuple[int, int]:
        asked.append(device)
        return 50, 100

    def wait(read: Callable[[], int], wanted: int) -> int:
        waits.append(wanted)
        return read()

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(memory, "settled", wait)
    wait_for_memory(torch.device("cpu"), 60)
    assert not asked
    for wanted in (None, 60, 40, 1000):
        wait_for_memory(torch.device("cuda"), wanted)
    assert waits == [90, 60, 90]
