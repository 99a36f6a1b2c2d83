"""The figures of a load as a PNG: how latencies are spread, and what happened over time."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from forebay_server.bench.records import RequestRecord
from forebay_server.bench.slo import Objectives

BLUE, RED, GREY = "#1f5fa8", "#b8322a", "#777777"


def draw(title: str, records: Sequence[RequestRecord], objectives: Objectives | None, path: Path) -> None:
    """Write the picture; a load without a whole answer shows its failures alone."""
    figure = Figure(figsize=(12, 7), layout="constrained")
    FigureCanvasAgg(figure)
    ((first, gaps), (tokens, requests)) = figure.subplots(2, 2)
    answers = [record for record in records if record.is_ok]
    limits = objectives or Objectives()
    _shares(first, [record.ttft for record in answers], "time to first token", limits.ttft)
    _shares(gaps, [gap for record in answers for gap in record.gaps], "inter-token latency", limits.itl)
    start = min(record.sent for record in records)
    _tokens_over_time(tokens, answers, start)
    _requests_over_time(requests, records, start)
    figure.suptitle(title)
    figure.savefig(path, dpi=120, format="png")


def _shares(axes: Axes, seconds: Sequence[float], name: str, limit: float | None) -> None:
    """The share of measurements at or below each time."""
    if seconds:
        ordered = np.sort(np.array(seconds)) * 1000
        axes.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", color=BLUE)
    if limit is not None:
        axes.axvline(limit * 1000, color=RED, linestyle="--", label="objective")
        axes.legend(frameon=False)
    axes.set(xlabel=f"{name}, ms", ylabel="share of measurements", ylim=(0, 1.02))


def _tokens_over_time(axes: Axes, answers: Sequence[RequestRecord], start: float) -> None:
    """Output tokens in each second."""
    weights = [record.output_tokens / len(record.chunk_times) for record in answers for _ in record.chunk_times]
    times = [time - start for record in answers for time in record.chunk_times]
    if times:
        edges = np.arange(0, max(times) + 1.0001)
        counts, _ = np.histogram(times, bins=edges if len(edges) > 1 else [0, 1], weights=weights)
        axes.stairs(counts, edges if len(edges) > 1 else [0, 1], fill=True, color=BLUE, alpha=0.6)
    axes.set(xlabel="seconds since the load began", ylabel="output tokens in a second")
    axes.set_ylim(bottom=0)


def _requests_over_time(axes: Axes, records: Sequence[RequestRecord], start: float) -> None:
    """The end-to-end latency of each request by when it was sent; failures as crosses at the bottom."""
    answers = [record for record in records if record.is_ok]
    failures = [record for record in records if not record.is_ok]
    sent = [record.sent - start for record in answers]
    axes.scatter(sent, [record.latency for record in answers], s=10, color=BLUE, label="end to end")
    axes.scatter(sent, [record.ttft for record in answers], s=10, color=GREY, label="first token")
    if failures:
        times = [record.sent - start for record in failures]
        axes.scatter(times, [0.0] * len(times), s=30, marker="x", color=RED, label="failed")
    axes.set(xlabel="sent, seconds since the load began", ylabel="latency, s")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
