"""Ranks: starts the processes of all ranks but this one, talks to them, and tells when one has failed."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

import msgspec

from forebay_server.config import EngineConfig
from forebay_server.errors import ExitCode, StartupError
from forebay_server.parallel.messages import FromRank, Joined, Loaded, RankFailed, RankLaunch, ToRank
from forebay_server.weights.quantization import QuantizationOptions

RANK_MODULE = "forebay_server.parallel.worker"
_END_SECONDS = 5.0
"""A rank that is told to end has so long before it is killed."""


class Ranks:
    """Ranks 1 to size - 1, each a process that ends when this one does or closes its socket.

    Must be made on the main thread (see `forebay_server.launch.start_child`).

    Args:
        config: of the engine.
        options: which weights are quantized.
        available_bytes: memory for the weights of one rank.
        num_threads: of each rank.
        log_level: of their logs.
    """

    def __init__(
        self,
        config: EngineConfig,
        options: QuantizationOptions,
        available_bytes: int,
        num_threads: int,
        log_level: str = "info",
    ) -> None:
        self._folder = tempfile.mkdtemp(prefix="forebay-ranks-")
        self.store_path = str(Path(self._folder) / "store")
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromRank)
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, config.tensor_parallel_size):
            ours, theirs = Pipe()
            launch = RankLaunch(
                config=config,
                options=options,
                rank=rank,
                socket_fd=theirs.fileno(),
                store_path=self.store_path,
                available_bytes=available_bytes,
                num_threads=num_threads,
                parent_pid=os.getpid(),
                log_level=log_level,
            )
            command = [sys.executable, "-m", RANK_MODULE, "--config-json", msgspec.json.encode(launch).decode()]
            self._processes.append(
                subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
            )
            theirs.close()
            self._connections.append(ours)

    def send(self, message: ToRank) -> None:
        """Tell all ranks.

        Raises:
            StartupError: one of them has ended.
        """
        frame = self._encoder.encode(message)
        try:
            for connection in self._connections:
                connection.send_bytes(frame)
        except OSError as error:
            raise self.failure(wait_seconds=2.0) or _ended(0, None) from error

    def wait_for(self, kind: type[Loaded] | type[Joined]) -> list[Loaded | Joined]:
        """One message of this kind from every rank.

        Raises:
            StartupError: one of them has failed, with its exit code.
        """
        answers: dict[int, Loaded | Joined] = {}
        while len(answers) < len(self._connections):
            ready = wait(self._connections, timeout=0.5)
            for index, connection in enumerate(self._connections):
                if connection in ready:
                    answer = self._receive(index)
                    if not isinstance(answer, kind):
                        raise self._failure_of(index, answer)
                    answers[index] = answer
                elif self._processes[index].poll() is not None:
                    raise self._failure_of(index, None)
        return list(answers.values())

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
                if connection in ready:  # a rank speaks unasked only to say that it ends
                    return self._failure_of(index, self._receive(index))
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
        shutil.rmtree(self._folder, ignore_errors=True)

    def _receive(self, index: int) -> Loaded | Joined | RankFailed | None:
        with contextlib.suppress(EOFError, OSError):
            message: Loaded | Joined | RankFailed = self._decoder.decode(self._connections[index].recv_bytes())
            return message
        return None

    def _failure_of(self, index: int, message: Loaded | Joined | RankFailed | None) -> StartupError:
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
