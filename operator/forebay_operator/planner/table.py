"""Plans and refusals as text for people: a small aligned table that shows the sum, and what stands behind it."""

import textwrap
from collections.abc import Iterable, Sequence

from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.planner.request import PlanRequest
from forebay_operator.planner.result import MemoryPlan, Plan, Refusal
from forebay_operator.planner.wording import gpus, size

WIDTH = 118
"""Columns of the text; tables may be wider."""


def plan_text(request: PlanRequest, plan: Plan) -> str:
    """A plan: what was chosen, the memory of one rank as a sum, estimates, the arithmetic, the alternatives."""
    name = request.accelerator.name
    parts = [
        f"{_model(request.facts)} on {gpus(plan.num_gpus, name)}",
        "",
        _aligned(
            [
                ("parallelism", f"tensor {plan.tensor_parallel_size}, pipeline {plan.pipeline_parallel_size}"),
                ("weights", plan.weights),
                ("KV cache", f"{plan.kv_cache_dtype}, {plan.kv_cache_tokens:,} tokens in {plan.num_blocks:,} blocks"),
                ("guaranteed", f"{plan.guaranteed_sequences:,} sequences of {plan.guaranteed_length:,} tokens at once"),
                ("a step", f"at most {plan.max_num_seqs:,} sequences and {plan.max_num_batched_tokens:,} tokens"),
            ]
        ),
        "",
        f"memory of one {name}",
        _memory(plan.memory),
        "",
        "estimates",
        _estimates(plan),
        "",
        "why",
        _list(plan.explanation),
    ]
    if plan.rejected:
        parts += ["", "not chosen", _aligned([(entry.option, entry.reason) for entry in plan.rejected])]
    return "\n".join(parts)


def refusal_text(request: PlanRequest, refusal: Refusal) -> str:
    """A refusal: the numbers, and what would fit."""
    parts = [
        f"{_model(request.facts)} on {request.accelerator.name}: refused ({refusal.reason})",
        _list([refusal.message]),
    ]
    if refusal.suggestions:
        parts += ["", "any one of these changes would fit", _list(refusal.suggestions)]
    if refusal.explanation:
        parts += ["", "closest", _list(refusal.explanation)]
    if refusal.rejected:
        parts += ["", "tried", _aligned([(entry.option, entry.reason) for entry in refusal.rejected])]
    return "\n".join(parts)


def comparison_text(facts: ModelFacts, answers: Sequence[tuple[str, Plan | Refusal]]) -> str:
    """Accelerators side by side, the cheapest per million tokens first; refusals last."""
    plans = [(name, answer) for name, answer in answers if isinstance(answer, Plan)]
    plans.sort(key=lambda pair: pair[1].estimate.cost_per_million_tokens_cents)
    rows = [
        (
            "accelerator",
            "GPUs",
            "weights",
            "KV",
            "KV tokens",
            "tokens/s",
            "first token",
            "next token",
            "USD per 1M tokens",
        )
    ]
    for name, plan in plans:
        estimate = plan.estimate
        rows.append(
            (
                name,
                str(plan.num_gpus),
                plan.weights,
                plan.kv_cache_dtype,
                f"{plan.kv_cache_tokens:,}",
                f"{estimate.output_tokens_per_second:,}",
                f"{estimate.time_to_first_token_ms:,} ms",
                f"{estimate.inter_token_latency_us / 1000:,.1f} ms",
                _dollars(estimate.cost_per_million_tokens_cents),
            )
        )
    parts = [_model(facts), "", _columns(rows)]
    refused = [(name, answer.message) for name, answer in answers if isinstance(answer, Refusal)]
    if refused:
        parts += ["", "refused", _aligned(refused)]
    if plans:
        parts += [
            "",
            "estimates",
            _list([f"{plans[0][1].estimate.assumptions.rpartition(', ')[0]}; prices of the catalogue"]),
        ]
    return "\n".join(parts)


def _model(facts: ModelFacts) -> str:
    billions = facts.num_parameters / 10**9
    return f"{facts.architecture} {billions:.1f}B" if billions >= 1 else f"{facts.architecture} {billions * 1000:.0f}M"


def _memory(memory: MemoryPlan) -> str:
    terms = [
        ("weights", memory.weights),
        ("KV cache", memory.kv_cache),
        ("activations", memory.activations),
        ("logits", memory.logits),
        ("CUDA graphs", memory.graphs),
        ("runtime", memory.runtime),
        ("communication", memory.communication),
        ("margin", memory.margin),
    ]
    rows = [f"  {name:<15}{size(count):>12}" for name, count in terms if count]
    rows += ["  " + "-" * 27, f"  {'sum':<15}{size(memory.used):>12}", f"  {'usable':<15}{size(memory.total):>12}"]
    rows.append(f"  {'left over':<15}{size(memory.headroom):>12}")
    return "\n".join(rows)


def _estimates(plan: Plan) -> str:
    estimate = plan.estimate
    factor = estimate.output_tokens_per_second / estimate.naive_output_tokens_per_second
    rows = [
        ("first token", f"{estimate.time_to_first_token_ms:,} ms"),
        ("next token", f"{estimate.inter_token_latency_us / 1000:,.1f} ms with {estimate.batch:,} sequences at once"),
        ("throughput", f"{estimate.output_tokens_per_second:,} tokens/s; one request at a time "
                       f"{estimate.naive_output_tokens_per_second:,} ({factor:.0f} times less)"),
    ]  # fmt: skip
    if estimate.cost_per_million_tokens_cents[1]:
        own, naive = estimate.cost_per_million_tokens_cents, estimate.naive_cost_per_million_tokens_cents
        rows.append(("cost", f"{_dollars(own)} USD per million tokens; one request at a time {_dollars(naive)}"))
    rows.append(("assumed", estimate.assumptions))
    return _aligned(rows)


def _dollars(cents: tuple[int, int]) -> str:
    low, high = cents
    return f"{low / 100:,.2f}-{high / 100:,.2f}" if high else "unknown"


def _aligned(rows: Sequence[tuple[str, str]]) -> str:
    """Two columns, the first as wide as its longest entry; the second is wrapped."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(_wrapped(f"  {name:<{width}}  ", text) for name, text in rows)


def _list(lines: Sequence[str]) -> str:
    """Indented lines, wrapped."""
    return "\n".join(_wrapped("  ", line, "    ") for line in lines)


def _wrapped(start: str, text: str, indent: str | None = None) -> str:
    """A line that begins with `start` and goes on, indented, below; words are never cut."""
    below = " " * len(start) if indent is None else indent
    return textwrap.fill(
        text, WIDTH, initial_indent=start, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
    )


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; numbers to the right, the first column to the left."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]

    def line(cells: Iterable[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        first = padded[0].strip().ljust(widths[0])
        return "  " + "  ".join([first, *padded[1:]])

    return "\n".join(line(row) for row in rows)
