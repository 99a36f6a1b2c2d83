"""Wait for what the engine sends for one request."""

import asyncio
import time
from collections.abc import Callable

from forebay_server.api.engine_client import OutputQueue
from forebay_server.errors import InternalError, InvalidRequestError, RequestTimeoutError, UnavailableError
from forebay_server.messages import GRAMMAR_ERROR, NOTHING_LEFT, RequestOutput

QUEUE_RETRY_SECONDS = 5


def limit_time(queue: OutputQueue, arrival_time: float, limit_seconds: float | None) -> Callable[[], None]:
    """Put an error into the queue when the time of a request is up.

    Args:
        queue: of the request.
        arrival_time: CLOCK_MONOTONIC seconds.
        limit_seconds: from then on; None: no limit.

    Returns:
        Stops the clock.
    """
    if limit_seconds is None:
        return lambda: None
    error = RequestTimeoutError(
        f"the answer was not done within {limit_seconds:g} s, the limit of this server", code="request_timeout"
    )
    remaining = max(0.0, limit_seconds - (time.monotonic() - arrival_time))
    return asyncio.get_running_loop().call_later(remaining, queue.put_nowait, error).cancel


async def next_output(queue: OutputQueue) -> RequestOutput:
    """The next output.

    Raises:
        ApiError: the engine is gone, or could not serve this request.
    """
    item = await queue.get()
    if not isinstance(item, RequestOutput):
        raise item
    if item.error == NOTHING_LEFT:
        raise InvalidRequestError(NOTHING_LEFT)
    if item.finish_reason == "error":
        if item.error is not None and item.error.startswith(GRAMMAR_ERROR):
            raise InvalidRequestError(item.error, code="unsupported_grammar")
        raise InternalError(item.error or "the engine could not serve this request")
    return item


async def first_output(queue: OutputQueue, arrival_time: float, limit_seconds: float) -> RequestOutput:
    """The first output, within the queue timeout.

    Args:
        queue: of the request.
        arrival_time: CLOCK_MONOTONIC seconds.
        limit_seconds: from then on.

    Raises:
        UnavailableError: nothing came in time.
        ApiError: as for `next_output`.
    """
    try:
        async with asyncio.timeout(max(0.0, limit_seconds - (time.monotonic() - arrival_time))):
            return await next_output(queue)
    except TimeoutError:
        raise UnavailableError(
            f"no place for this request came free within {limit_seconds:g} s",
            code="queue_timeout",
            retry_after_seconds=QUEUE_RETRY_SECONDS,
        ) from None
