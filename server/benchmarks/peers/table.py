"""From the timings of every engine to the table of ratios and verdicts. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Measure = Literal["decode tokens/s, 1 stream", "output tokens/s, all streams", "time to first token, s"]
DECODE: Measure = "decode tokens/s, 1 stream"
THROUGHPUT: Measure = "output tokens/s, all streams"
FIRST_TOKEN: Measure = "time to first token, s"


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of every repetition of one engine."""

    first_token: list[float]
    """One prompt, one output token."""
    whole: list[float]
    """One prompt, all output tokens."""
    streams: list[float]
    """All streams together, prompts included."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Medians of one engine; the spread is (worst - best) / median of the single-stream runs."""

    decode_tokens_per_second: float
    streams_tokens_per_second: float
    first_token_seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio that is wanted: ours over theirs for rates, for times at most so much of the best peer's."""

    measure: Measure
    ours: str
    peers: tuple[str, ...]
    """With several the best of those that are here counts."""
    ratio: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one target came out."""

    target: Target
    ratio: float | None
    """None: one side is not here."""
    met: bool | None
    against: str
    """The peer that counted, or why there is no ratio."""


OPENVINO, VLLM, LLAMA_8, LLAMA_4 = "OpenVINO GenAI int8", "vLLM CPU bf16", "llama.cpp Q8_0", "llama.cpp Q4_0"
OURS_8, OURS_4, OURS_16 = "forebay int8", "forebay int4", "forebay bf16"
TARGETS = (
    Target(DECODE, OURS_8, (OPENVINO,), 2.0),
    Target(DECODE, OURS_8, (VLLM,), 4.0),
    Target(DECODE, OURS_8, (LLAMA_8,), 1.2),
    Target(DECODE, OURS_4, (LLAMA_4,), 1.2),
    Target(THROUGHPUT, OURS_8, (OPENVINO,), 1.5),
    Target(THROUGHPUT, OURS_8, (VLLM,), 2.5),
    Target(FIRST_TOKEN, OURS_8, (OPENVINO, VLLM, LLAMA_8, LLAMA_4), 0.8),
)


def speeds(timings: Timings, output_tokens: int, num_streams: int) -> Speeds:
    """Medians; decoding is what a whole answer takes longer than its first token.

    Raises:
        ValueError: a whole answer was not slower than its first token: nothing can be said.
    """
    first, whole = median(timings.first_token), median(timings.whole)
    if whole <= first:
        raise ValueError(f"{output_tokens} tokens took {whole:.3f} s and the first one {first:.3f} s")
    return Speeds(
        decode_tokens_per_second=(output_tokens - 1) / (whole - first),
        streams_tokens_per_second=num_streams * output_tokens / median(timings.streams),
        first_token_seconds=first,
        spread=(max(timings.whole) - min(timings.whole)) / whole,
    )


def verdicts(measured: dict[str, Speeds], targets: Sequence[Target] = TARGETS) -> list[Verdict]:
    """Hold the speeds against the targets; whoever is not here never counts as beaten."""
    return [_verdict(measured, target) for target in targets]


def _verdict(measured: dict[str, Speeds], target: Target) -> Verdict:
    if target.ours not in measured:
        return Verdict(target, None, None, f"{target.ours} is not here")
    here = {name: _value(measured[name], target.measure) for name in target.peers if name in measured}
    if not here:
        return Verdict(target, None, None, f"{' and '.join(target.peers)}: not here")
    best = min if target.measure == FIRST_TOKEN else max
    peer = best(here, key=lambda name: here[name])
    ratio = _value(measured[target.ours], target.measure) / here[peer]
    met = ratio <= target.ratio if target.measure == FIRST_TOKEN else ratio >= target.ratio
    missing = [name for name in target.peers if name not in measured]
    return Verdict(
        target, ratio, met, peer + (f" (best of those here; not here: {', '.join(missing)})" if missing else "")
    )


def _value(of: Speeds, measure: Measure) -> float:
    if measure == DECODE:
        return of.decode_tokens_per_second
    return of.streams_tokens_per_second if measure == THROUGHPUT else of.first_token_seconds


def render(measured: dict[str, Speeds], details: dict[str, str], missing: dict[str, str], found: list[Verdict]) -> str:
    """Both tables as text."""
    width = max(map(len, (*measured, *missing, "engine")))
    columns = f"{'decode tok/s':>12}  {'streams tok/s':>13}  {'first token':>11}  {'spread':>6}"
    head = f"{'engine':{width}}  {columns}  weights, version"
    lines = [head]
    for name, speed in measured.items():
        lines.append(
            f"{name:{width}}  {speed.decode_tokens_per_second:12.1f}  {speed.streams_tokens_per_second:13.1f}"
            f"  {speed.first_token_seconds * 1000:8.0f} ms  {speed.spread:6.0%}  {details.get(name, '')}"
        )
    lines += [f"{name:{width}}  not here: {why}" for name, why in missing.items()]
    lines += ["", f"{'target':46}{'wanted':>8}{'ratio':>8}  "]
    for verdict in found:
        target = verdict.target
        sign = "<=" if target.measure == FIRST_TOKEN else ">="
        what = f"{target.ours}, {target.measure}"
        ratio = "-" if verdict.ratio is None else f"{verdict.ratio:.2f}"
        word = "not measured" if verdict.met is None else "met" if verdict.met else "MISSED"
        lines.append(f"{what:46}{sign + format(target.ratio, '.1f'):>8}{ratio:>8}  {word}, against {verdict.against}")
    return "\n".join(lines)
