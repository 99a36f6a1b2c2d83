"""Run prompts whose hidden states are pooled: a window of them at a time, so that a long list floods no queue."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay_server.api.engine_client import OutputQueue
from forebay_server.api.generation import Usage
from forebay_server.api.outputs import first_output, limit_time, next_output
from forebay_server.api.queue_place import QueuePlace
from forebay_server.api.service import Service
from forebay_server.errors import ApiError
from forebay_server.messages import AddRequest, FinishReason, Pooling, RequestOutput
from forebay_server.sampling_params import SamplingParams

WINDOW = 32
"""Prompts of one request in the engine at a time; so many places it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequest:
    """What to pool."""

    prompts: Sequence[list[int]]
    pooling: Pooling
    arrival_time: float
    """CLOCK_MONOTONIC seconds."""
    cache_salt: str = ""


class PooledPrompts:
    """One running request; its places in the admission are taken before and given back by `close`.

    Args:
        service: the server.
        request: what to pool.
        num_places: that it took.
        place: in the queue.

    Raises:
        OverloadedError: there is no room for its tokens.
        InvalidRequestError: there never is.
    """

    def __init__(self, service: Service, request: PoolingRequest, num_places: int, place: QueuePlace) -> None:
        self._service = service
        self._request = request
        self._num_places = num_places
        self._place = place
        self._num_tokens = sum(sorted(map(len, request.prompts))[-num_places:])
        """Prompt tokens in the engine at a time, at most."""
        service.admission.admit_tokens(self._num_tokens)
        self._stop_clock: Callable[[], None] = lambda: None
        self._index_by_id: dict[str, int] = {}
        self.usage = Usage(sum(map(len, request.prompts)))

    async def vectors(self) -> list[list[float]]:
        """One for each prompt, as the model has it: [hidden_size].

        Raises:
            UnavailableError: nothing came within the queue timeout, or the engine is gone.
            InternalError: the engine could not serve one of them.
        """
        engine_id = secrets.token_hex(8)
        found: dict[int, list[float]] = {}
        queue = OutputQueue()
        limit_seconds = self._service.config.request_timeout_seconds
        self._stop_clock = limit_time(queue, self._request.arrival_time, limit_seconds)
        try:
            for index in range(self._num_places):
                self._submit(engine_id, index, queue)
            while self._index_by_id:
                output = await (next_output(queue) if found else self._first(queue))
                index = self._index_by_id.pop(output.request_id)
                found[index] = output.embedding or []
                self.usage.cached_tokens += output.num_cached_tokens
                self._count_end(index, "stop")
                self._service.metrics.count_prompt_tokens(len(self._request.prompts[index]))
                following = len(found) + len(self._index_by_id)
                if following < len(self._request.prompts):
                    self._submit(engine_id, following, queue)
        except ApiError:
            self.close("error")
            raise
        return [found[index] for index in range(len(found))]

    def facts(self) -> dict[str, object]:
        """What there is to log."""
        return {"prompt_tokens": self.usage.prompt_tokens, "cached_tokens": self.usage.cached_tokens}

    def close(self, finish_reason: FinishReason = "abort") -> None:
        """End whatever still runs; may be called twice."""
        self._stop_clock()
        self._service.engine.abort(list(self._index_by_id))
        for index in self._index_by_id.values():
            self._count_end(index, finish_reason)
        self._index_by_id.clear()
        self._service.admission.release(self._num_places, self._num_tokens)
        self._num_places = self._num_tokens = 0

    def _submit(self, engine_id: str, index: int, queue: OutputQueue) -> None:
        message = AddRequest(
            request_id=f"{engine_id}-{index}",
            prompt_token_ids=self._request.prompts[index],
            sampling=SamplingParams(max_tokens=1),
            arrival_time=self._request.arrival_time,
            priority=self._place.priority,
            tenant=self._place.tenant,
            cache_salt=self._request.cache_salt,
            pooling=self._request.pooling,
        )
        self._service.engine.submit([message], queue)
        self._index_by_id[message.request_id] = index

    async def _first(self, queue: OutputQueue) -> RequestOutput:
        return await first_output(queue, self._request.arrival_time, self._service.config.queue_timeout_seconds)

    def _count_end(self, index: int, finish_reason: FinishReason) -> None:
        metrics = self._service.metrics
        metrics.count_finished(finish_reason)
        metrics.observe("e2e_request_latency_seconds", time.monotonic() - self._request.arrival_time)
        metrics.observe("request_prompt_tokens", len(self._request.prompts[index]))
