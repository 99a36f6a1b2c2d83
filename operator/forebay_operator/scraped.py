"""Scraped: what one pod said of itself on its ops port. Plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What an engine has really allocated on one accelerator; None where it did not say."""

    weight_bytes: int | None = None
    kv_cache_tokens: int | None = None
    kv_bytes_per_token: int | None = None
    activation_peak_bytes: int | None = None
    """The most that the largest step took, logits included."""
    free_bytes: int | None = None
    """Of the accelerator before anything was loaded."""


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
    measured: Measured | None = None
    """None: the engine has not come so far."""
