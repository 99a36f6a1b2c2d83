"""Service-level objectives of a load: `ttft=500ms,itl=50ms`. Pure.

Goodput counts the requests that meet all of them (Zhong et al. 2024, DistServe, arXiv:2401.09670).
"""

import re
from dataclasses import dataclass

from forebay_server.bench.records import RequestRecord

KEYS = ("ttft", "itl", "gap", "tpot", "e2e")
_LIMIT = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Objectives:
    """Limits in seconds; None: any time will do."""

    ttft: float | None = None
    """To the first token."""
    itl: float | None = None
    """Mean of the request's inter-token latencies."""
    gap: float | None = None
    """The longest of them."""
    tpot: float | None = None
    e2e: float | None = None
    """To the end of the answer."""

    def are_met_by(self, record: RequestRecord) -> bool:
        """Whether a request was answered within all of them; failed requests never are."""
        if not record.is_ok:
            return False
        gaps = record.gaps
        measured = {
            "ttft": record.ttft,
            "itl": sum(gaps) / len(gaps) if gaps else 0.0,
            "gap": max(gaps, default=0.0),
            "tpot": record.tpot or 0.0,
            "e2e": record.latency,
        }
        limits = {key: getattr(self, key) for key in KEYS}
        return all(measured[key] <= limit for key, limit in limits.items() if limit is not None)


def parse_objectives(text: str) -> Objectives:
    """Read `KEY=TIME,...` with times such as 500ms or 1.5s.

    Raises:
        ValueError: saying which part is wrong and what would be right.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        key, _, limit = part.strip().partition("=")
        if key not in KEYS:
            raise ValueError(f"{part.strip()!r}: one of {', '.join(KEYS)} is wanted, such as ttft=500ms")
        found = _LIMIT.fullmatch(limit.strip())
        if found is None:
            raise ValueError(f"{part.strip()!r}: a time with its unit is wanted, such as {key}=500ms or {key}=1.5s")
        limits[key] = float(found[1]) / (1000 if found[2] == "ms" else 1)
    return Objectives(**limits)
