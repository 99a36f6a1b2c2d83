"""From the records of a load to its figures. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from forebay_server.bench.distribution import Distribution, distribution
from forebay_server.bench.records import RequestRecord
from forebay_server.bench.slo import Objectives


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What a load showed. Times in seconds, rates a second of wall time; latencies of whole answers only."""

    duration: float
    """From the first request sent to the last one ended."""
    num_requests: int
    num_ok: int
    errors: dict[str, int]
    """Failed requests by kind."""
    prompt_tokens: int
    output_tokens: int
    """Of whole answers."""
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    goodput_per_second: float | None
    """Requests that met all objectives; None: none were set."""
    num_good: int | None
    mean_concurrency: float
    """Requests in flight, on average."""
    ttft: Distribution | None
    itl: Distribution | None
    """Over all gaps between chunks of all requests."""
    tpot: Distribution | None
    latency: Distribution | None
    send_delay: Distribution | None
    """How much later than wanted requests were sent: large values mean that the load generator is the bottleneck."""


def load_figures(records: Sequence[RequestRecord], objectives: Objectives | None) -> LoadFigures:
    """Add up a load.

    Args:
        records: of every request that was sent; at least one.
        objectives: for goodput; None: it is not wanted.
    """
    good_answers = [record for record in records if record.is_ok]
    first, last = min(record.sent for record in records), max(record.ended for record in records)
    duration = max(last - first, 1e-9)
    prompt_tokens = sum(record.prompt_tokens for record in good_answers)
    output_tokens = sum(record.output_tokens for record in good_answers)
    num_good = None if objectives is None else sum(objectives.are_met_by(record) for record in records)
    return LoadFigures(
        duration=duration,
        num_requests=len(records),
        num_ok=len(good_answers),
        errors=dict(Counter(record.error for record in records if record.error is not None).most_common()),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        requests_per_second=len(good_answers) / duration,
        output_tokens_per_second=output_tokens / duration,
        total_tokens_per_second=(prompt_tokens + output_tokens) / duration,
        goodput_per_second=None if num_good is None else num_good / duration,
        num_good=num_good,
        mean_concurrency=sum(record.latency for record in records) / duration,
        ttft=distribution([record.ttft for record in good_answers]),
        itl=distribution([gap for record in good_answers for gap in record.gaps]),
        tpot=distribution([tpot for record in good_answers if (tpot := record.tpot) is not None]),
        latency=distribution([record.latency for record in good_answers]),
        send_delay=distribution([max(0.0, record.sent - record.scheduled) for record in records]),
    )
