"""Report: a calculation as text for people and as an object for programs."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay_operator.planner.roofline import BANDWIDTH_PERCENT, FLOPS_PERCENT, STEP_OVERHEAD_US
from forebay_operator.roi.calculate import Result, Row
from forebay_operator.roi.inputs import HOURS_PER_MONTH, Inputs
from forebay_operator.roi.steps import OPTIMIZATIONS

WIDTH = 118

GENERAL = (
    f"speeds are the planner's roofline, not measured: {BANDWIDTH_PERCENT}% of the memory bandwidth, {FLOPS_PERCENT}% "
    f"of the arithmetic peak, {STEP_OVERHEAD_US} us a step; forebay plan shows the same",
    f"a month has {HOURS_PER_MONTH:.0f} hours; GPUs come in whole replicas, at least one, so a gain can show "
    "only in a later row; only GPU hours are counted, not people, storage or network",
    "cost per million output tokens, the prompts included in it; each row has all the rows above it that lower the "
    "cost, others are left out",
    "requests are alike and as long as given; larger batches make one answer slower, and latency is not priced",
)
"""What holds for every row."""


@dataclass(frozen=True, slots=True)
class Report:
    """A calculation with its circumstances."""

    model: str
    accelerator: str
    inputs: Inputs
    result: Result
    defaults: tuple[str, ...] = ()
    """Inputs that were not given, as the command line writes them."""


def text(report: Report) -> str:
    """An aligned table, the sum of it in a sentence, and what every row assumes."""
    inputs, rows = report.inputs, report.result.rows
    parts = [
        f"{report.model} on {report.accelerator} at {inputs.price:,.2f} USD for a GPU and hour",
        f"{inputs.requests_per_day:,.0f} requests a day of {inputs.prompt_tokens:,} prompt and "
        f"{inputs.output_tokens:,} output tokens; {rows[0].gpus:,} GPUs with work {inputs.utilization:g}% of the time",
    ]
    if report.defaults:
        parts.append(_wrapped("", f"not given, so examples: {', '.join(report.defaults)}"))
    parts += [
        "",
        _table(rows),
        "",
        _wrapped("", summary(report.result)),
        _wrapped("", check(report)),
        "",
        "what each assumes, and its source",
    ]
    parts += [
        _wrapped(f"  {index}. ", f"{step.name}: {step.assumes} [{step.source}]", "     ")
        for index, step in enumerate(OPTIMIZATIONS, 1)
    ]
    parts += ["", "all of them", *(_wrapped("  - ", line, "    ") for line in GENERAL)]
    return "\n".join(parts)


def summary(result: Result) -> str:
    """One sentence: from what to what."""
    first, last = result.rows[0], result.rows[-1]
    share = f" ({abs(last.saving) / first.cost:.0%})" if first.cost else ""
    word = "saves" if last.saving >= 0 else "costs"
    more = "" if last.saving >= 0 else " more"
    return (
        f"from {first.gpus:,} GPUs and {_dollars(first.cost)} USD a month to {last.gpus:,} and {_dollars(last.cost)}: "
        f"{word} {_dollars(abs(last.saving))} USD{more} a month{share}, {_dollars(abs(last.saving) * 12)} a year"
    )


def to_json(report: Report) -> dict[str, Any]:
    """The report with names as the operator's objects have them; money in US dollars."""
    inputs = report.inputs
    steps = {step.key: step for step in OPTIMIZATIONS}
    rows = []
    for row in report.result.rows:
        cost = row.cost_per_million_tokens
        entry: dict[str, Any] = {
            "key": row.key,
            "name": row.name,
            "verdict": row.verdict,
            "factor": round(row.factor, 4),
            "weights": row.format,
            "batch": row.batch,
            "gpusPerReplica": row.gpus_per_replica,
            "outputTokensPerSecondPerGPU": round(row.tokens_per_second, 2),
            "gpus": row.gpus,
            "monthlyCostUSD": round(row.cost, 2),
            "costPerMillionTokensUSD": None if cost is None else round(cost, 6),
            "monthlySavingUSD": round(row.saving, 2),
        }
        if row.key in steps:
            entry |= {"assumes": steps[row.key].assumes, "source": steps[row.key].source}
        rows.append(entry)
    return {
        "model": report.model,
        "accelerator": report.accelerator,
        "inputs": {
            "requestsPerDay": inputs.requests_per_day,
            "promptTokens": inputs.prompt_tokens,
            "outputTokens": inputs.output_tokens,
            "utilizationPercent": inputs.utilization,
            "targetUtilizationPercent": inputs.target_utilization,
            "gpuPricePerHourUSD": inputs.price,
            "gpus": report.result.rows[0].gpus,
            "prefixHitPercent": inputs.prefix_hit,
            "acceptancePercent": inputs.acceptance,
        },
        "defaults": list(report.defaults),
        "gpusOneAtATime": report.result.gpus_one_at_a_time,
        "rows": rows,
        "assumptions": list(GENERAL),
    }


def check(report: Report) -> str:
    """What today's GPUs give, beside what the arithmetic expects: how far the first steps are in use already."""
    inputs, result = report.inputs, report.result
    if inputs.gpus is None:
        return (
            f"Today is the worst case: requests served one at a time, with GPUs at work {inputs.utilization:g}% of the "
            "time. Give the number that you pay for with --gpus."
        )
    if not inputs.requests_per_day:
        return "Without requests one replica stays ready."
    now, alone, last = result.rows[0].tokens_per_second, result.speed_one_at_a_time, result.rows[-1].tokens_per_second
    given = f"Check: today a GPU at work gives {_speed(now)} tokens/s; one request at a time would give {_speed(alone)}"
    if now < alone / 1.5:
        return f"{given}. The GPUs do other work as well, or are at work for less of the time than was said."
    if now > last:
        return (
            f"{given} and everything together {_speed(last)}. Today's is more than this arithmetic expects: most of "
            "it is in use already, or GPUs are at work for more of the time than was said."
        )
    if now > 1.5 * alone:
        return f"{given}. So a part of what follows is in use already; the saving is against what you pay."
    return f"{given}: requests are served one at a time, or nearly so."


def _table(rows: Sequence[Row]) -> str:
    lines = [("", "factor", "weights", "tokens/s/GPU", "GPUs", "USD a month", "USD per 1M", "saves a month")]
    for index, row in enumerate(rows):
        name = f"{index}. {row.name}" if index else "   Today"
        per_million = "-" if row.cost_per_million_tokens is None else f"{row.cost_per_million_tokens:,.2f}"
        factor = _effect(row) if index else ""
        saving = "" if not index else _dollars(row.saving)
        speed = _speed(row.tokens_per_second)
        lines.append((name, factor, row.format, speed, f"{row.gpus:,}", _dollars(row.cost), per_million, saving))
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    shown = []
    for line in lines:
        first, *others = line
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        shown.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(shown)


def _effect(row: Row) -> str:
    if row.verdict != "applied":
        return row.verdict
    return "fewer GPUs" if row.factor < 1 else f"{row.factor:.2f}x"


def _speed(tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.0f}" if tokens_per_second >= 10 else f"{tokens_per_second:.2g}"


def _dollars(value: float) -> str:
    """Whole dollars; a half is rounded away from zero, as the page does it."""
    whole = math.floor(abs(value) + 0.5)
    return f"{whole:,}" if value >= 0 or not whole else f"-{whole:,}"


def _wrapped(start: str, line: str, indent: str = "") -> str:
    return textwrap.fill(line, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)
