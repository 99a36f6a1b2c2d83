"""The API process's end of the line to the engine: requests out, each output to the request that it belongs to."""

import asyncio
import time
from collections.abc import Sequence

import msgspec
import zmq
import zmq.asyncio

from forebay_server.errors import ApiError
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
from forebay_server.ops.shared_state import SharedState

OutputQueue = asyncio.Queue[RequestOutput | ApiError]
"""Outputs of all choices of one request, in the order of their steps; an error ends them all."""


class EngineClient:
    """Two sockets and a table of who waits for what. Lives in one event loop.

    Args:
        request_address: to bind; the engine pulls from it.
        output_address: to bind; the engine pushes to it.
        state: where the number of requests in the engine is published.
    """

    def __init__(self, request_address: str, output_address: str, state: SharedState) -> None:
        self._state = state
        self._context = zmq.asyncio.Context()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToApi)
        self._queue_by_id: dict[str, OutputQueue] = {}
        self._gone: ApiError | None = None
        self._bind(request_address, output_address)

    def _bind(self, request_address: str, output_address: str) -> None:
        self._requests = self._context.socket(zmq.PUSH)
        self._requests.set(zmq.SNDHWM, 0)
        self._requests.bind(request_address)
        self._outputs = self._context.socket(zmq.PULL)
        self._outputs.set(zmq.RCVHWM, 0)
        self._outputs.bind(output_address)
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[EngineReady] = loop.create_future()
        self.failed: asyncio.Future[EngineFailed] = loop.create_future()

    def rebind(self, request_address: str, output_address: str) -> None:
        """Turn to another engine, after `fail_all`; what was sent to the old one and not read is dropped.

        Until `reopen` whoever comes is still told what `fail_all` said. `receive_forever` has to be started anew.
        """
        self._requests.close(linger=0)
        self._outputs.close(linger=0)
        self._bind(request_address, output_address)

    def reopen(self) -> None:
        """Take requests again: the engine is ready."""
        self._gone = None

    async def receive_forever(self) -> None:
        """Deliver what the engine sends; run it as a task."""
        while True:
            message = self._decoder.decode(await self._outputs.recv())
            match message:
                case StepOutputs():
                    for output in message.outputs:
                        self._deliver(output)
                case EngineReady():
                    if not self.ready.done():
                        self.ready.set_result(message)
                case EngineFailed():
                    if not self.failed.done():
                        self.failed.set_result(message)

    def submit(self, requests: Sequence[AddRequest], queue: OutputQueue | None = None) -> OutputQueue:
        """Hand the choices of one request to the engine.

        Args:
            requests: the choices.
            queue: where their outputs shall arrive; None: a new one.

        Returns:
            Where their outputs will arrive.

        Raises:
            ApiError: the engine is gone.
        """
        if self._gone is not None:
            raise self._gone
        queue = OutputQueue() if queue is None else queue
        for request in requests:
            self._queue_by_id[request.request_id] = queue
        self._publish_count()
        for request in requests:
            self._send(request)
        return queue

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop choices that are still there; others are ignored."""
        known = [request_id for request_id in request_ids if self._queue_by_id.pop(request_id, None) is not None]
        if known:
            self._publish_count()
            if self._gone is None:
                self._send(AbortRequests(known))

    def fail_all(self, error: ApiError) -> None:
        """The engine is gone, or time is up: everyone who waits is told, and so is everyone who comes."""
        self._gone = error
        for queue in {id(queue): queue for queue in self._queue_by_id.values()}.values():
            queue.put_nowait(error)
        self._queue_by_id.clear()
        self._publish_count()

    def shut_down_engine(self) -> None:
        """Ask the engine to end."""
        self._send(Shutdown())

    def close(self) -> None:
        """Close the sockets; nothing unsent is waited for."""
        self._requests.close(linger=100)
        self._outputs.close(linger=0)
        self._context.term()

    def _deliver(self, output: RequestOutput) -> None:
        if output.finish_reason is None:
            queue = self._queue_by_id.get(output.request_id)
        else:
            queue = self._queue_by_id.pop(output.request_id, None)
            self._publish_count()
        if queue is not None:  # else it was aborted a moment ago
            queue.put_nowait(output)

    def _publish_count(self) -> None:
        count = len(self._queue_by_id)
        if count and not self._state.get("num_in_engine"):
            self._state.put("in_engine_since", time.monotonic())
        self._state.put("num_in_engine", count)

    def _send(self, message: ToEngine) -> None:
        """Send now, or in order as soon as the engine listens (its first connection may take a moment).

        There is no high-water mark and nobody waits for the result: an engine that is gone is noticed by its exit.
        """
        self._requests.send(self._encoder.encode(message))
