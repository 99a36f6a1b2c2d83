"""Where a request stands in the queue: its priority, and whose turn it takes."""

from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from forebay_server.config import ServerConfig
from forebay_server.errors import InvalidRequestError

TENANT_HEADER = "X-Forebay-Tenant"
_MAX_TENANT_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """What the scheduler orders waiting requests by."""

    priority: int = 0
    """Lower is served first."""
    tenant: str = ""
    """Tenants take turns; who names none shares the empty name."""


class _Body(Protocol):
    priority: int | None
    user: str | None


def queue_place(request: Request, body: _Body, config: ServerConfig) -> QueuePlace:
    """The place that a request asks for; the tenant is the header's, which a proxy can set, or else `user`.

    Raises:
        InvalidRequestError: it has a priority, and the server goes by arrival alone.
    """
    priority = body.priority or 0
    if priority and config.scheduling_policy != "priority":
        raise InvalidRequestError(
            f"priority is {priority}; this server takes requests in turn (it would need --scheduling-policy priority)",
            param="priority",
        )
    tenant = request.headers.get(TENANT_HEADER) or body.user or ""
    return QueuePlace(priority, tenant[:_MAX_TENANT_CHARACTERS])
