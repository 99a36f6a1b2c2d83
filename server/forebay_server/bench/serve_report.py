"""The figures of a load as text and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from forebay_server.bench.distribution import Distribution
from forebay_server.bench.load_metrics import LoadFigures


def as_json(settings: Mapping[str, Any], figures: LoadFigures, error_details: Mapping[str, str]) -> dict[str, Any]:
    """Plain data; times in seconds."""
    return {"settings": dict(settings), **asdict(figures), "error_details": dict(error_details)}


def as_text(settings: Mapping[str, Any], figures: LoadFigures, error_details: Mapping[str, str]) -> str:
    """The table that a person reads; times in milliseconds."""
    lines = [
        f"{settings['model']} at {settings['base_url']}, {settings['endpoint']}, {settings['arrivals']}",
        "",
        f"{'requests':30}{figures.num_requests:>12,}"
        f"   in {figures.duration:.1f} s, {figures.mean_concurrency:.1f} at once",
        f"{'answered whole':30}{figures.num_ok:>12,}",
    ]
    for kind, number in figures.errors.items():
        lines.append(f"{'failed: ' + kind:30}{number:>12,}   {error_details.get(kind, '')}".rstrip())
    lines += [
        f"{'requests/s':30}{figures.requests_per_second:>12.2f}",
        f"{'output tokens/s':30}{figures.output_tokens_per_second:>12.1f}",
        f"{'total tokens/s':30}{figures.total_tokens_per_second:>12.1f}",
        f"{'prompt, output tokens':30}{figures.prompt_tokens:>12,}, {figures.output_tokens:,}",
    ]
    if figures.goodput_per_second is not None:
        share = (figures.num_good or 0) / figures.num_requests
        lines.append(
            f"{'goodput, requests/s':30}{figures.goodput_per_second:>12.2f}   {share:.0%} within {settings['slo']}"
        )
    lines += ["", f"{'milliseconds':30}{'mean':>12}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}"]
    for name, times in (
        ("time to first token", figures.ttft),
        ("inter-token latency", figures.itl),
        ("time per output token", figures.tpot),
        ("end-to-end latency", figures.latency),
        ("sent later than wanted", figures.send_delay),
    ):
        lines.append(f"{name:30}{_milliseconds(times)}")
    return "\n".join(lines)


def _milliseconds(times: Distribution | None) -> str:
    if times is None:
        return f"{'-':>12}"
    shown = (times.p50, times.p90, times.p99, times.max)
    return f"{times.mean * 1000:>12.1f}" + "".join(f"{value * 1000:>10.1f}" for value in shown)
