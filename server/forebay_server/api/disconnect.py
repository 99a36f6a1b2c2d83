"""Notice that a client has gone while its request is worked on, and stop the work."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_Result = TypeVar("_Result")


class ClientGoneError(Exception):
    """Nobody is there to read the answer."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Do the work, unless the client closes the connection first.

    Args:
        receive: the request's channel, whose body has been read.
        work: is cancelled when the client goes; it gives back what it holds by itself.

    Raises:
        ClientGoneError: the client went first.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
        if working.cancelled():
            raise ClientGoneError
        return working.result()
    finally:
        watching.cancel()
        working.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
