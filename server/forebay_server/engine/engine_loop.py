"""The engine process's loop: take messages, compute a step, send its news. Nothing a request holds may end it."""

import gc
import logging
import os

import msgspec
import zmq

from forebay_server.engine.device import set_threads
from forebay_server.engine.engine import Engine, EngineFacts, load_engine, warm_up
from forebay_server.engine.memory_meter import measure_step
from forebay_server.engine.plan_check import check_step
from forebay_server.errors import ExitCode, ForebayError, StartupError
from forebay_server.launch import EngineLaunch, give_way
from forebay_server.messages import (
    AbortRequests,
    AddRequest,
    EngineFailed,
    RequestOutput,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
    ToApi,
    ToEngine,
)
from forebay_server.metrics import observe
from forebay_server.ops.shared_state import Phase, SharedState
from forebay_server.planned_memory import PlannedMemory

logger = logging.getLogger(__name__)

PARENT_CHECK_MS = 1000
"""An idle engine wakes this often to see whether its parent is still there."""
HELD_CHECK_MS = 2
"""When every request is held, the engine looks this often whether one can go."""
SEND_LINGER_MS = 5000
"""The last message (EngineFailed) is waited for so long at the end."""


class Mailbox:
    """Both sockets of the engine process; one frame is one message.

    Args:
        launch: with the addresses, which the API process has bound.
    """

    def __init__(self, launch: EngineLaunch) -> None:
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.PULL)
        self._requests.set_hwm(0)  # the API process bounds the queue, not the socket
        self._requests.connect(launch.request_address)
        self._outputs = self._context.socket(zmq.PUSH)
        self._outputs.set_hwm(0)
        self._outputs.setsockopt(zmq.LINGER, SEND_LINGER_MS)
        self._outputs.connect(launch.output_address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def send(self, message: ToApi) -> None:
        """Queue a message to the API process."""
        self._outputs.send(self._encoder.encode(message))

    def wait(self, timeout_ms: int) -> None:
        """Sleep until a message is there or the time is up."""
        self._requests.poll(timeout_ms)

    def receive(self) -> list[ToEngine]:
        """Every message that is there now; unreadable ones are logged and dropped."""
        messages: list[ToEngine] = []
        while True:
            try:
                frame = self._requests.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(self._decoder.decode(frame))
            except (msgspec.DecodeError, ForebayError):
                logger.exception("a message of %d bytes cannot be read", len(frame))

    def close(self) -> None:
        """Send what is queued and close."""
        self._requests.close(linger=0)
        self._outputs.close()
        self._context.term()


def run_engine(launch: EngineLaunch) -> int:
    """Load, report ready, serve until Shutdown.

    Returns:
        The exit code: 0 after Shutdown, else that of the `EngineFailed` that was sent.
    """
    mailbox = Mailbox(launch)
    try:
        _serve(launch, mailbox, SharedState(launch.state_fd))
    except StartupError as error:
        logger.error("%s: %s", error.reason, error.message)
        mailbox.send(_failure(error))
        return error.exit_code
    except MemoryError as error:
        failure = StartupError(ExitCode.WEIGHTS_DO_NOT_FIT, "OutOfMemory", f"out of memory: {error}")
        mailbox.send(_failure(failure))
        return failure.exit_code
    finally:
        mailbox.close()
    return ExitCode.DRAINED


def _serve(launch: EngineLaunch, mailbox: Mailbox, state: SharedState) -> None:
    num_threads = set_threads()
    state.set_phase(Phase.LOADING)
    planned = PlannedMemory.of(launch.plan)
    engine, facts = load_engine(launch.config, state.set_progress, planned=planned)
    state.set_phase(Phase.COMPILING if facts.computed_by == "triton" else Phase.WARMING)  # at first use
    warm_up(engine, facts)
    peak_bytes = None if planned is None else _check_plan(engine, facts, planned)
    gc.freeze()  # what is loaded now stays; collections need not look at it, not even for the first time
    gc.enable()  # see `process`
    give_way()
    logger.info("ready: %s, %d KV tokens, %d threads", facts.dtype, facts.layout.num_tokens, num_threads)
    _record(engine, state)
    state.set_phase(Phase.SERVING)
    mailbox.send(facts.ready_message(peak_bytes))
    cache_reset_asked = state.get("cache_reset_asked")
    while os.getppid() == launch.parent_pid:
        engine.check()
        if not engine.has_work:
            mailbox.wait(PARENT_CHECK_MS)
        elif engine.scheduler.is_only_holding:
            mailbox.wait(HELD_CHECK_MS)
        if state.get("cache_reset_asked") != cache_reset_asked:
            cache_reset_asked = state.get("cache_reset_asked")
            engine.scheduler.reset_prefix_cache()
        for message in mailbox.receive():
            if isinstance(message, Shutdown):
                return
            refusal = _handle(engine, message)
            if refusal is not None:
                mailbox.send(StepOutputs([refusal]))
        if engine.has_work:
            outputs = engine.step()
            _record(engine, state)
            if outputs:
                mailbox.send(StepOutputs(outputs))


def _check_plan(engine: Engine, facts: EngineFacts, planned: PlannedMemory) -> int:
    """Measure the largest step; returns its peak.

    Raises:
        StartupError: 14 when cache and step do not fit together.
    """
    step = measure_step(engine, facts)
    logger.info("a step of %d tokens takes %d bytes, %d were planned", step.num_tokens, step.peak_bytes, planned.step)
    check_step(
        planned,
        facts.layout,
        peak_bytes=step.peak_bytes,
        num_tokens=step.num_tokens,
        weight_bytes=facts.weight_bytes,
        free_bytes=step.free_bytes,
    )
    return step.peak_bytes


def _handle(engine: Engine, message: AddRequest | AbortRequests | ResetPrefixCache) -> RequestOutput | None:
    """Act on one message; returns an output when it cannot be."""
    match message:
        case AddRequest():
            try:
                engine.add(message)
            except ValueError as error:
                logger.exception("request %s is refused", message.request_id)
                return RequestOutput(request_id=message.request_id, finish_reason="error", error=str(error))
        case AbortRequests():
            engine.abort(message.request_ids)
        case ResetPrefixCache():
            engine.scheduler.reset_prefix_cache()
    return None


def _record(engine: Engine, state: SharedState) -> None:
    scheduler = engine.scheduler
    counters = scheduler.take_counters()
    if counters.new_computed_tokens:
        observe(state, "iteration_tokens_total", counters.new_computed_tokens)
    state.record_step(
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        kv_used_blocks=scheduler.pool.num_held,
        kv_total_blocks=scheduler.pool.num_blocks,
        kv_unused_slots=scheduler.num_unused_slots,
        new_preemptions=counters.new_preemptions,
        new_prefix_cache_queries=counters.new_prefix_cache_queries,
        new_prefix_cache_hits=counters.new_prefix_cache_hits,
    )


def _failure(error: StartupError) -> EngineFailed:
    return EngineFailed(
        exit_code=error.exit_code,
        reason=error.reason,
        message=error.message,
        need_bytes=error.need_bytes,
        have_bytes=error.have_bytes,
        suggestion=error.suggestion,
    )
