"""The API process's life: serve while the engine loads, hand out the model, drain on SIGTERM, end with an exit code."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

import uvicorn

from forebay_server.api.app import build_app
from forebay_server.api.connection import Connection
from forebay_server.api.engine_client import EngineClient
from forebay_server.api.service import LOADING_RETRY_SECONDS, Service, served_model
from forebay_server.children import EngineChild, OpsChild, engine_failure
from forebay_server.config import ServerConfig
from forebay_server.errors import ExitCode, StartupError, UnavailableError
from forebay_server.messages import ComputedBy, EngineReady
from forebay_server.ops.cpu_wait import StepWatch
from forebay_server.ops.probes import liveness
from forebay_server.ops.shared_state import Phase, SharedState
from forebay_server.restarts import RestartPolicy
from forebay_server.text.model_text import ModelText, load_model_text

_MONITOR_SECONDS = 0.1
_FLUSH_SECONDS = 2.0
"""Answers and error messages have so long to reach their clients at the end."""
_ENGINE_END_SECONDS = 5.0
"""An engine that said it ends, or was told to, has so long."""
_LISTEN_BACKLOG = 2048
_ACCEPTS_A_ROUND = 16
"""The event loop takes one new connection a round from each descriptor of the listener, and a round serves everybody
else once: with one descriptor, many that come together would wait for as many rounds."""
_KEEP_ALIVE_SECONDS = 75
"""Longer than clients and proxies keep theirs, so that they close first and never send into a closing connection."""
_LAST_WORDS_SECONDS = 1.0
"""An engine was seen to end before its last message was read: how long to wait for one."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What was made before the event loop."""

    config: ServerConfig
    state: SharedState
    model_path: Path
    listener: socket.socket
    """Bound socket of the API."""
    ops: OpsChild
    engine: EngineChild


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: they close the listener, and new clients would be refused, not told."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Supervisor:
    """Runs one server until it ends.

    Args:
        parts: what it runs.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._config = parts.config
        self._state = parts.state
        self._client = EngineClient(parts.engine.request_address, parts.engine.output_address, parts.state)
        self._service = Service(parts.config, parts.state, self._client)
        self._server = _Server(
            uvicorn.Config(
                build_app(self._service),
                http=Connection,
                proxy_headers=False,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                backlog=_LISTEN_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(_FLUSH_SECONDS),
                ssl_certfile=parts.config.tls_cert_file,
                ssl_keyfile=parts.config.tls_key_file,
            )
        )
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._engine_tasks: list[asyncio.Task[Any]] = []
        """What waits for the present engine's messages."""
        self._restarting: asyncio.Task[Any] | None = None
        self._text: ModelText | None = None
        self._has_served = False
        self._restarts = RestartPolicy(parts.config.max_engine_restarts)
        self._step_watch = StepWatch(parts.state, parts.config.hang_timeout_seconds)
        self._watch_from = 0.0

    async def run(self) -> int:
        """Serve to the end.

        Returns:
            The exit code after a drain, or 128 + signal when stopped at once.

        Raises:
            StartupError: the engine or the model failed, at the start or later.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        listeners = [self._parts.listener.dup() for _ in range(_ACCEPTS_A_ROUND)]
        self._parts.listener.close()
        serving = asyncio.create_task(self._server.serve(sockets=listeners))
        self._listen_to_engine()
        self._start(self._monitor())
        try:
            return await self._end
        finally:
            self._server.should_exit = True
            await asyncio.wait({serving}, timeout=_FLUSH_SECONDS + 1)
            for task in (serving, *self._tasks):
                task.cancel()
            await asyncio.gather(serving, *self._tasks, return_exceptions=True)
            self._service.close()
            self._client.close()

    def _listen_to_engine(self) -> None:
        self._engine_tasks = [self._start(self._client.receive_forever()), self._start(self._load())]

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
        """Run a task whose failure ends the server."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._end.done():
            self._end.set_exception(error)

    async def _load(self) -> None:
        """Read tokenizer and template while the engine loads, then open the doors."""
        if self._text is None:
            self._text = await self._service.in_thread(lambda: load_model_text(self._parts.model_path))
        ready = await self._client.ready
        self._publish(ready)
        self._client.reopen()
        self._service.model = served_model(self._text, ready, self._service.config)
        self._service.is_restarting = False
        self._state.put("is_ready", 1)
        self._has_served = True
        gc.collect()
        gc.freeze()  # what is loaded now stays; collections that look at all of it would hold every stream up
        seconds = time.monotonic() - self._state.get("api_started")
        _logger.info(
            "ready after %.1f s: model %s, context %d tokens, KV cache %d tokens",
            *(seconds, self._service.model_name, self._service.model.context_tokens, ready.kv_cache_tokens),
        )

    def _publish(self, ready: EngineReady) -> None:
        for name in ("weight_bytes", "kv_cache_tokens", "kv_bytes_per_token", "max_model_len", "block_size"):
            self._state.put(name, getattr(ready, name))
        self._state.put("activation_peak_bytes", ready.activation_peak_bytes or 0)
        self._state.put("free_bytes", ready.free_bytes or 0)
        self._state.put("computed_by", 1 + get_args(ComputedBy).index(ready.computed_by))
        self._state.put("num_blocks", ready.num_blocks)

    async def _monitor(self) -> None:
        """Say that the API lives; see to an engine that has ended or hangs."""
        last_beat = time.monotonic()
        next_sample = 0.0
        while True:
            now = time.monotonic()
            self._state.put("api_heartbeat", now)
            if now - last_beat > 5.0:  # the whole machine stood still, not the engine alone: give it time
                self._watch_from = now + self._config.hang_timeout_seconds
            last_beat = now
            self._step_watch.look(now)
            self._parts.ops.ensure_running()
            is_restarting = self._restarting is not None and not self._restarting.done()
            has_ended = self._client.failed.done() or self._parts.engine.exit_code() is not None
            if has_ended and not is_restarting:
                await self._on_engine_end()
            elif now >= self._watch_from and not is_restarting:
                verdict = liveness(self._state.snapshot(), now, self._service.limits)
                if not verdict.ok:
                    await self._on_trouble(StartupError(ExitCode.ENGINE_HUNG, verdict.reason, verdict.message))
            if now >= next_sample:
                self._service.token_rate.sample()
                next_sample = now + 1.0
            await asyncio.sleep(_MONITOR_SECONDS)

    async def _on_engine_end(self) -> None:
        """Tell the engine's own reason if it gave one (the message may come after the exit is seen)."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._client.failed), _LAST_WORDS_SECONDS)
        failed = self._client.failed.result() if self._client.failed.done() else None
        deadline = time.monotonic() + _ENGINE_END_SECONDS
        while self._parts.engine.exit_code() is None and time.monotonic() < deadline:
            await asyncio.sleep(_MONITOR_SECONDS)
        await self._on_trouble(engine_failure(self._parts.engine.exit_code(), failed))

    async def _on_trouble(self, error: StartupError) -> None:
        """The engine is lost: start another one if this one had served and has not ended too often, else end.

        Raises:
            StartupError: it is not started again.
        """
        delay = self._restarts.delay_after_end(time.monotonic()) if self._has_served else None
        if delay is None or self._state.get("is_draining"):
            await self._fail(error)
        _logger.error("%s: %s; starting the engine again in %g s", error.reason, error.message, delay)
        self._close_doors(error)
        self._service.is_restarting = True
        for task in self._engine_tasks:
            task.cancel()
        for field in ("num_running", "num_waiting", "kv_used_blocks", "bytes_done"):
            self._state.put(field, 0)  # the engine's numbers, but the engine is no more
        self._state.set_phase(Phase.LOADING)
        self._state.add("num_engine_restarts", 1)
        self._parts.engine.kill()
        self._restarting = self._start(self._restart_engine(delay))

    async def _restart_engine(self, delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)
        self._parts.engine.restart()
        self._client.rebind(self._parts.engine.request_address, self._parts.engine.output_address)
        self._listen_to_engine()

    def _close_doors(self, error: StartupError) -> None:
        """Take no more requests, and tell every waiting client."""
        self._state.put("is_ready", 0)
        self._service.model = None
        self._client.fail_all(
            UnavailableError(
                f"the engine has ended: {error.message}", code="engine_lost", retry_after_seconds=LOADING_RETRY_SECONDS
            )
        )

    async def _fail(self, error: StartupError) -> NoReturn:
        """Every waiting client gets an error; then the server ends with this one."""
        self._close_doors(error)
        await self._until_idle(_FLUSH_SECONDS)
        raise error

    def _on_signal(self, number: signal.Signals) -> None:
        if self._end.done():
            return
        if self._state.get("is_draining"):
            _logger.warning("%s again: stopping now", number.name)
            self._server.force_exit = True
            self._end.set_result(128 + number)
        elif self._service.model is None:
            _logger.info("%s while loading: stopping", number.name)
            self._end.set_result(ExitCode.DRAINED)
        else:
            self._state.put("is_draining", 1)
            self._start(self._drain(number))

    async def _drain(self, number: signal.Signals) -> None:
        count, limit = self._service.admission.num_in_flight, self._config.drain_timeout_seconds
        _logger.info(
            "%s: draining; %d requests have %g s to finish (a second signal stops at once)", number.name, count, limit
        )
        if not await self._until_idle(limit):
            _logger.warning("drain timeout: %d requests are cut off", self._service.admission.num_in_flight)
            self._client.fail_all(UnavailableError("the server ended before the answer did", code="drain_timeout"))
            await self._until_idle(_FLUSH_SECONDS)
        self._client.shut_down_engine()
        if not self._end.done():
            self._end.set_result(ExitCode.DRAINED)

    async def _until_idle(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while self._service.admission.num_in_flight and time.monotonic() < deadline:
            await asyncio.sleep(_MONITOR_SECONDS / 2)
        return not self._service.admission.num_in_flight
