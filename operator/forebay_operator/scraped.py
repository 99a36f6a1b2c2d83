"""Scraped: what one pod said of itself on its ops port. Plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraped:
    """One answer of `/startupz` and `/load`; None where the pod did not say."""

    phase: str | None = None
    """downloading, loading, compiling, warming, serving or draining."""
    bytes_loaded: int | None = None
    bytes_total: int | None = None
    running: int | None = None
    """Requests in the engine's batch; None: the load could not be read."""
    waiting: int | None = None
    """Requests in the engine's queue; None: the load could not be read."""
