"""The two children of the API process: started, watched, ended."""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from forebay_server.config import ServerConfig
from forebay_server.errors import ExitCode, StartupError
from forebay_server.launch import EngineLaunch, OpsLaunch, start_child
from forebay_server.messages import EngineFailed
from forebay_server.ops.shared_state import SharedState

OPS_MODULE = "forebay_server.ops.process"
ENGINE_MODULE = "forebay_server.engine.process"
_MAX_OPS_RESTARTS = 10
_logger = logging.getLogger(__name__)


class OpsChild:
    """The ops process; started again when it dies, since it holds nothing.

    Args:
        config: of the server.
        state: shared with it.
        listener: the bound socket of the ops port; stays open here, so that a restart keeps the port.
        plan: the operator's plan.
    """

    def __init__(
        self, config: ServerConfig, state: SharedState, listener: socket.socket, plan: dict[str, object] | None
    ) -> None:
        self._inherited = (listener.fileno(), state.file_descriptor)
        self._launch = OpsLaunch(
            listen_fd=listener.fileno(),
            state_fd=state.file_descriptor,
            parent_pid=os.getpid(),
            model_name=config.served_model_names[0],
            hang_timeout_seconds=config.hang_timeout_seconds,
            load_stall_timeout_seconds=config.load_stall_timeout_seconds,
            compile_timeout_seconds=config.compile_timeout_seconds,
            plan=plan,
        )
        self._num_restarts = 0
        self._process = start_child(OPS_MODULE, self._launch, self._inherited)

    def ensure_running(self) -> None:
        """Start it again if it has died; gives up after a few times (then the probes fail, as they should)."""
        code = self._process.poll()
        if code is None or self._num_restarts >= _MAX_OPS_RESTARTS:
            return
        self._num_restarts += 1
        _logger.error("the ops process ended (%s); starting it again", describe_exit(code))
        self._process = start_child(OPS_MODULE, self._launch, self._inherited)

    def kill(self) -> None:
        """End it."""
        _kill(self._process)


class EngineChild:
    """The engine process and the private folder of its sockets; both are new after `restart`.

    Args:
        config: of the server.
        state: shared with it.
        module: what to run; tests have a stand-in.
        plan: the operator's plan.
    """

    def __init__(
        self,
        config: ServerConfig,
        state: SharedState,
        module: str = ENGINE_MODULE,
        plan: dict[str, object] | None = None,
    ) -> None:
        self._config = config
        self._state = state
        self._module = module
        self._plan = plan
        self._start()

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="forebay-"))
        self.request_address = f"ipc://{self._folder}/requests"
        self.output_address = f"ipc://{self._folder}/outputs"
        launch = EngineLaunch(
            config=self._config.engine,
            request_address=self.request_address,
            output_address=self.output_address,
            state_fd=self._state.file_descriptor,
            parent_pid=os.getpid(),
            log_level=self._config.log_level,
            plan=self._plan,
        )
        self._process = start_child(self._module, launch, (self._state.file_descriptor,))
        self._state.put("engine_pid", self._process.pid)

    def restart(self) -> None:
        """End it if it still runs, and start another one with sockets of its own."""
        self.kill()
        self._start()

    def exit_code(self) -> int | None:
        """None while it runs; negative: the number of the signal that killed it."""
        return self._process.poll()

    def kill(self) -> None:
        """End it and remove the sockets."""
        _kill(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)


def engine_failure(exit_code: int | None, failed: EngineFailed | None) -> StartupError:
    """Why the server must end when its engine has.

    Args:
        exit_code: of the engine; None when it said that it failed and then did not end.
        failed: its own words, if it had time for some.
    """
    if failed is not None:
        return StartupError(
            _known_code(failed.exit_code),
            failed.reason,
            failed.message,
            need_bytes=failed.need_bytes,
            have_bytes=failed.have_bytes,
            suggestion=failed.suggestion,
        )
    code = -1 if exit_code is None else exit_code
    suggestion = None
    if code == -signal.SIGKILL:
        suggestion = "if nobody killed it, the memory limit is too small: the kernel ends what exceeds it"
    return StartupError(
        _known_code(code), "EngineLost", f"the engine process ended: {describe_exit(code)}", suggestion=suggestion
    )


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def _known_code(code: int) -> ExitCode:
    try:
        known = ExitCode(code)
    except ValueError:
        return ExitCode.DEVICE_LOST
    return ExitCode.DEVICE_LOST if known is ExitCode.DRAINED else known


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
