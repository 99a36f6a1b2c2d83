"""The operator's own HTTP port: `/healthz` for probes and `/metrics` for Prometheus."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from forebay_operator.resync import Resync
from forebay_operator.settings import SettingsError
from forebay_operator.work_queue import WorkQueue

STUCK_SECONDS = 300
"""A reconcile that takes longer hangs."""


def trouble(queue: WorkQueue, resync: Resync) -> str | None:
    """Why the operator should be restarted; None when it should not."""
    if queue.longest_active_seconds() > STUCK_SECONDS:
        return "a reconcile hangs"
    return resync.trouble()


class HealthServer:
    """Answers on one port; asks its two functions at each request."""

    def __init__(self, trouble: Callable[[], str | None], exposition: Callable[[], bytes]) -> None:
        self._trouble = trouble
        self._exposition = exposition
        self._runner: web.AppRunner | None = None

    async def start(self, port: int) -> int:
        """Listen on all addresses; returns the port, which matters when 0 was asked for.

        Raises:
            SettingsError: the port cannot be had.
        """
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runner = runner
        try:
            await web.TCPSite(runner, "0.0.0.0", port).start()
        except OSError as error:
            raise SettingsError(f"cannot listen on FOREBAY_HEALTH_PORT {port}: {error.strerror}") from error
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        found = self._trouble()
        return web.Response(text=f"{found or 'ok'}\n", status=503 if found else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})
