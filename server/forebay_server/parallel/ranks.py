"""Ranks: starts the processes of all ranks but this one, talks to them, and tells when one has failed."""

import contextlib
import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection, Pipe, wait
from typing import TypeVar

import msgspec

from forebay_server.config import EngineConfig
from forebay_server.engine.scheduler_output import SampledToken
from forebay_server.errors import ExitCode, StartupError
from forebay_server.parallel.messages import (
    Found,
    FromRank,
    Joined,
    Loaded,
    RankFailed,
    RankLaunch,
    ToRank,
    decoder,
    encoder,
)
from forebay_server.parallel.stages import sampling_rank
from forebay_server.weights.quantization import QuantizationOptions

RANK_MODULE = "forebay_server.parallel.worker"
_END_SECONDS = 5.0
"""A rank that is told to end has so long before it is killed."""

Answer = TypeVar("Answer", Loaded, Joined, Found)


def store_path(store_fd: int) -> str:
    """The file through which the ranks find one another, in a process that has inherited its descriptor."""
    return f"/proc/self/fd/{store_fd}"


class Ranks:
    """Ranks 1 to size - 1, each a process that ends when this one does or closes its socket.

    Must be made on the main thread (see `forebay_server.launch.start_child`).

    Args:
        config: of the engine.
        options: which weights are quantized.
        max_model_len: longest request.
        available_bytes: memory for the weights of one rank.
        num_threads: of each rank.
        log_level: of their logs.
    """

    def __init__(
        self,
        config: EngineConfig,
        options: QuantizationOptions,
        max_model_len: int,
        available_bytes: int,
        num_threads: int,
        log_level: str = "info",
    ) -> None:
        # A file without a name: gone with the last rank, however that ends. It is never closed, because torch's
        # FileStore opens its path once more when it is destroyed; and an engine process makes only one.
        store_fd = os.memfd_create("forebay-ranks", 0)
        self.store_path = store_path(store_fd)
        self._encoder, self._decoder = encoder(), decoder(FromRank)
        self._sampler = sampling_rank(config.tensor_parallel_size, config.pipeline_parallel_size) - 1
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, config.num_ranks):
            ours, theirs = Pipe()
            launch = RankLaunch(
                config=config,
                options=options,
                rank=rank,
                socket_fd=theirs.fileno(),
                store_fd=store_fd,
                max_model_len=max_model_len,
                available_bytes=available_bytes,
                num_threads=num_threads,
                parent_pid=os.getpid(),
                log_level=log_level,
            )
            command = [sys.executable, "-m", RANK_MODULE, "--config-json", msgspec.json.encode(launch).decode()]
            inherited = [theirs.fileno(), store_fd]
            self._processes.append(
                subprocess.Popen(command, pass_fds=inherited, stdin=subprocess.DEVNULL, start_new_session=True)
            )
            theirs.close()
            self._connections.append(ours)

    def send(self, message: ToRank, to_last_stage: ToRank | None = None) -> None:
        """Tell all ranks.

        Args:
            message: to all.
            to_last_stage: to the first rank of the last stage, instead; None: `message` as well.

        Raises:
            StartupError: one of them has ended.
        """
        frame = self._encoder.encode(message)
        own_frame = frame if to_last_stage is None else self._encoder.encode(to_last_stage)
        try:
            for index, connection in enumerate(self._connections):
                connection.send_bytes(own_frame if index == self._sampler else frame)
        except OSError as error:
            raise self.failure(wait_seconds=2.0) or _ended(0, None) from error

    def wait_for(self, kind: type[Answer]) -> list[Answer]:
        """One message of this kind from every rank.

        Raises:
            StartupError: one of them has failed, with its exit code.
        """
        answers: dict[int, Answer] = {}
        while len(answers) < len(self._connections):
            answers |= self._next_answers(kind)
        return [answers[index] for index in sorted(answers)]

    def take_found(self, num_messages: int) -> dict[str, SampledToken]:
        """Wait for the tokens of a step, which the first rank of the last stage tells in so many messages.

        Raises:
            StartupError: a rank has failed, with its exit code.
            RuntimeError: the tokens could not be found; the ranks live on.
        """
        found: dict[str, SampledToken] = {}
        errors: list[str] = []
        while num_messages:
            for answer in self._next_answers(Found).values():
                num_messages -= 1
                found |= answer.tokens
                if answer.error is not None:
                    errors.append(answer.error)
        if errors:
            raise RuntimeError(errors[0])
        return found

    def _next_answers(self, kind: type[Answer]) -> dict[int, Answer]:
        """What has come within half a second, at most one message from each rank, by its place in the list.

        Raises:
            StartupError: a rank has failed, or says something else.
        """
        answers: dict[int, Answer] = {}
        ready = wait(self._connections, timeout=0.5)
        for index, connection in enumerate(self._connections):
            if connection in ready:
                answer = self._receive(index)
                if not isinstance(answer, kind):
                    raise self._failure_of(index, answer)
                answers[index] = answer
            elif self._processes[index].poll() is not None:
                raise self._failure_of(index, None)
        return answers

    def check(self) -> None:
        """Raise when a rank has ended; cheap enough for every turn of the engine's loop.

        Raises:
            StartupError: with the rank's exit code.
        """
        failure = self.failure()
        if failure is not None:
            raise failure

    def failure(self, wait_seconds: float = 0.0) -> StartupError | None:
        """Why the first rank that has failed did so; None when all live.

        Args:
            wait_seconds: how long one may take to end, when something has already gone wrong.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            ready = wait(self._connections, timeout=0) if self._connections else []
            for index, connection in enumerate(self._connections):
                if connection in ready:
                    message = self._receive(index)
                    if isinstance(message, Found):  # of a step that failed elsewhere
                        continue
                    return self._failure_of(index, message)  # a rank speaks unasked only to say that it ends
                if self._processes[index].poll() is not None:
                    return self._failure_of(index, None)
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.02)

    def close(self) -> None:
        """End all ranks."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._connections, self._processes = [], []

    def _receive(self, index: int) -> FromRank | None:
        with contextlib.suppress(EOFError, OSError):
            message: FromRank = self._decoder.decode(self._connections[index].recv_bytes())
            return message
        return None

    def _failure_of(self, index: int, message: FromRank | None) -> StartupError:
        rank = index + 1
        if isinstance(message, RankFailed):
            return message.error(rank)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[index].wait(_END_SECONDS)
        return _ended(rank, self._processes[index].returncode)


def _ended(rank: int, returncode: int | None) -> StartupError:
    """The error for a rank that said nothing before it ended."""
    known = [code for code in ExitCode if code == returncode and code != ExitCode.DRAINED]
    how = "does not answer" if returncode is None else f"ended with exit code {returncode}"
    if returncode is not None and returncode < 0:
        how = f"was killed by signal {-returncode}"
    return StartupError(known[0] if known else ExitCode.DEVICE_LOST, "RankLost", f"rank {rank} {how}")
