"""`forebay serve`: bind both ports at once, start the children, run the API. Torch is only in the engine process."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

from forebay_server.arguments import bad_configuration, parse_args, read_plan
from forebay_server.children import ENGINE_MODULE, EngineChild, OpsChild
from forebay_server.config import ServerConfig
from forebay_server.errors import ExitCode, StartupError
from forebay_server.ops.shared_state import SharedState
from forebay_server.planned_memory import PlannedMemory
from forebay_server.termination import report_failure
from forebay_server.text.model_path import locate_model

_LISTEN_BACKLOG = 2048
_logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run `forebay serve` and return its exit code."""
    try:
        return serve(parse_args(argv))
    except StartupError as error:
        report_failure(error)
        return error.exit_code


def serve(config: ServerConfig, engine_module: str = ENGINE_MODULE) -> int:
    """Serve until the end.

    Args:
        config: what to serve.
        engine_module: the engine process's module; tests have a stand-in without torch.

    Returns:
        The exit code of an orderly end.

    Raises:
        StartupError: the server could not start, or lost its engine.
    """
    _log_to_stderr(config.log_level)
    plan = None if config.plan_file is None else read_plan(config.plan_file)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_early)
    with ExitStack() as cleanup:
        ops_listener = cleanup.enter_context(_bind("--ops-port", config.host, config.ops_port))
        listener = cleanup.enter_context(_bind("--port", config.host, config.port))
        model_path = locate_model(config.engine.model)
        state = SharedState.create()
        _publish_plan(plan, state)
        engine = EngineChild(config, state, engine_module, plan)  # the first to start: it takes longest
        cleanup.callback(engine.kill)
        ops = OpsChild(config, state, ops_listener, plan)
        cleanup.callback(ops.kill)
        _logger.info(
            "API on %s, probes and metrics on %s; loading %s",
            *(
                _address(listener, "https" if config.tls_cert_file else "http"),
                _address(ops_listener),
                config.engine.model,
            ),
        )
        return _supervise(config, state, model_path, listener, ops, engine)


def _publish_plan(plan: dict[str, object] | None, state: SharedState) -> None:
    planned = PlannedMemory.of(plan)
    if planned is not None:
        state.put("planned_total_bytes", planned.total)
        state.put("planned_weight_bytes", planned.weights)
        state.put("planned_kv_cache_bytes", planned.kv_cache)
        state.put("planned_activation_bytes", planned.step)


def _supervise(
    config: ServerConfig,
    state: SharedState,
    model_path: Path,
    listener: socket.socket,
    ops: OpsChild,
    engine: EngineChild,
) -> int:
    import uvloop

    from forebay_server.supervisor import Parts, Supervisor  # takes a moment, and the engine has begun

    parts = Parts(config=config, state=state, model_path=model_path, listener=listener, ops=ops, engine=engine)

    async def run() -> int:
        return await Supervisor(parts).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _bind(flag: str, host: str, port: int) -> socket.socket:
    """A listening socket, so that nobody is refused from the first moment on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_LISTEN_BACKLOG)
    except OSError as error:
        raise bad_configuration(f"cannot listen on --host {host} {flag} {port}: {error.strerror}") from error


def _address(listener: socket.socket, scheme: str = "http") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _stop_early(number: int, _: FrameType | None) -> NoReturn:
    """End at once: nothing runs until the event loop has its own handlers (and PID 1 would ignore the signal)."""
    sys.exit(ExitCode.DRAINED if number == signal.SIGTERM else 128 + number)
