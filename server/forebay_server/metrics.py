"""Every metric, named once: counted by the API process into shared memory, rendered by any process in milliseconds.

Names follow vLLM's words with our prefix; the same numbers also appear under the `vllm:` names that Gateway API
Inference Extension, KEDA recipes and public dashboards read. A histogram is a row of slots of
`SharedState.histogram_slots`: one count for each bucket, one for above the last, the sum.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from forebay_server.ops.shared_state import NUM_HISTOGRAM_SLOTS, SharedState, StateSnapshot

_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_GAP_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKEN_COUNT_BUCKETS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
_STEP_TOKEN_BUCKETS = (1.0, *(float(8 << power) for power in range(12)))
OLD_NAMES = {
    "inter_token_latency_seconds": "time_per_output_token_seconds",
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
}
"""What older dashboards call some of the `vllm:` metrics."""
FINISH_REASONS = ("stop", "length", "abort", "error")


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram and where its slots begin."""

    name: str
    help: str
    buckets: tuple[float, ...]
    first_slot: int = field(default=0)

    @property
    def num_slots(self) -> int:
        """Of the buckets, what lies above them, and the sum."""
        return len(self.buckets) + 2


def _laid_out(histograms: Sequence[Histogram]) -> dict[str, Histogram]:
    by_name: dict[str, Histogram] = {}
    slot = len(FINISH_REASONS)
    for histogram in histograms:
        by_name[histogram.name] = Histogram(histogram.name, histogram.help, histogram.buckets, slot)
        slot += histogram.num_slots
    if slot > NUM_HISTOGRAM_SLOTS:
        raise ValueError(f"the histograms need {slot} slots, the shared memory has {NUM_HISTOGRAM_SLOTS}")
    return by_name


HISTOGRAMS = _laid_out(
    [
        Histogram("time_to_first_token_seconds", "From arrival to the first token.", _FIRST_TOKEN_BUCKETS),
        Histogram("inter_token_latency_seconds", "Between two tokens of one choice.", _TOKEN_GAP_BUCKETS),
        Histogram("e2e_request_latency_seconds", "From arrival to the end.", _REQUEST_BUCKETS),
        Histogram("request_queue_time_seconds", "From arrival to the first step.", _REQUEST_BUCKETS),
        Histogram("request_prefill_time_seconds", "From the first step to the first token.", _REQUEST_BUCKETS),
        Histogram("request_decode_time_seconds", "From the first token to the last.", _REQUEST_BUCKETS),
        Histogram("request_inference_time_seconds", "From the first step to the last token.", _REQUEST_BUCKETS),
        Histogram(
            "request_time_per_output_token_seconds", "Mean time between the tokens of a choice.", _TOKEN_GAP_BUCKETS
        ),
        Histogram("request_max_num_generation_tokens", "Tokens of a request's longest choice.", _TOKEN_COUNT_BUCKETS),
        Histogram("iteration_tokens_total", "Tokens computed in a step.", _STEP_TOKEN_BUCKETS),
        Histogram("request_prompt_tokens", "Prompt tokens of a choice.", _TOKEN_COUNT_BUCKETS),
        Histogram("request_generation_tokens", "Generated tokens of a choice.", _TOKEN_COUNT_BUCKETS),
        Histogram("request_params_max_tokens", "Tokens that a choice may have.", _TOKEN_COUNT_BUCKETS),
        Histogram("request_params_n", "Choices of a request.", (1.0, 2.0, 5.0, 10.0, 20.0)),
    ]
)


def observe(state: SharedState, name: str, value: float) -> None:
    """Count one value of a histogram; only one process may, for each histogram."""
    histogram = HISTOGRAMS[name]
    slots = state.histogram_slots
    slots[histogram.first_slot + bisect_left(histogram.buckets, value)] += 1
    slots[histogram.first_slot + histogram.num_slots - 1] += value


class RequestMetrics:
    """What the API process counts; a call costs about a microsecond."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._slots = state.histogram_slots

    def observe(self, name: str, value: float) -> None:
        """Count one value of a histogram."""
        observe(self._state, name, value)

    def count_prompt_tokens(self, num_tokens: int) -> None:
        """Count the prompts of a request that is served, as its `usage` does."""
        self._state.add("num_prompt_tokens", num_tokens)

    def count_generated_tokens(self, num_tokens: int) -> None:
        """Count tokens that a client gets, as its `usage` does."""
        self._state.add("num_generation_tokens", num_tokens)

    def count_finished(self, finish_reason: str) -> None:
        """Count one finished choice."""
        self._slots[FINISH_REASONS.index(finish_reason)] += 1


def render_metrics(state: SharedState, model_name: str, accept: str = "") -> tuple[bytes, str]:
    """The exposition text.

    Args:
        state: where the numbers are.
        model_name: the label on every metric.
        accept: the scraper's Accept header.

    Returns:
        Body and content type.
    """
    registry = CollectorRegistry()
    registry.register(_StateCollector(state, model_name))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


@dataclass(frozen=True, slots=True)
class _StateCollector(Collector):
    state: SharedState
    model_name: str

    def collect(self) -> Iterator[Metric]:
        now = self.state.snapshot()
        slots = list(self.state.histogram_slots)
        yield from _gauges(now, self.model_name)
        for prefix, labels in (
            ("forebay_", {"model_name": self.model_name}),
            ("vllm:", {"model_name": self.model_name, "engine": "0"}),
        ):
            yield from _counters(now, slots, prefix, labels)
            for histogram in HISTOGRAMS.values():
                yield _histogram(histogram, slots, prefix + histogram.name, labels)
                if prefix == "vllm:" and histogram.name in OLD_NAMES:
                    yield _histogram(histogram, slots, prefix + OLD_NAMES[histogram.name], labels)


def _gauges(now: StateSnapshot, model_name: str) -> Iterator[Metric]:
    usage = now.kv_used_blocks / now.kv_total_blocks if now.kv_total_blocks else 0.0
    used_slots = now.kv_used_blocks * now.block_size
    waste = now.kv_unused_slots / used_slots if used_slots else 0.0
    ours, theirs = {"model_name": model_name}, {"model_name": model_name, "engine": "0"}
    for name, alias, help_text, value in (
        ("num_requests_running", "num_requests_running", "Requests in the engine's steps.", now.num_running),
        ("num_requests_waiting", "num_requests_waiting", "Requests that wait for a place.", num_waiting(now)),
        ("kv_cache_usage_ratio", "kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", usage),
        ("kv_cache_waste_ratio", None, "Share of the slots in use that hold no token, 0 to 1.", waste),
        ("kv_cache_capacity_tokens", None, "Tokens that the KV cache has room for.", now.kv_cache_tokens),
    ):
        yield _gauge(f"forebay_{name}", help_text, ours, value)
        if alias is not None:
            yield _gauge(f"vllm:{alias}", help_text, theirs, value)
            if alias in OLD_NAMES:
                yield _gauge(f"vllm:{OLD_NAMES[alias]}", help_text, theirs, value)
    yield from _memory_gauges(now, ours)
    blocks = {"block_size": str(int(now.block_size)), "num_gpu_blocks": str(int(now.num_blocks))}
    yield _gauge("vllm:cache_config_info", "Shape of the KV cache.", {**theirs, **blocks}, 1.0)


def _memory_gauges(now: StateSnapshot, labels: dict[str, str]) -> Iterator[Metric]:
    """What was measured at the start, and what the operator's plan says; only what is known."""
    cache = now.kv_cache_tokens * now.kv_bytes_per_token
    for name, help_text, value in (
        ("memory_weights_bytes", "Weights, as loaded.", now.weight_bytes),
        ("memory_kv_cache_bytes", "KV cache, as allocated.", cache),
        ("memory_activation_peak_bytes", "The most that the largest step took.", now.activation_peak_bytes),
        ("memory_free_bytes", "Free before anything was loaded.", now.free_bytes),
        ("plan_total_bytes", "Memory that the plan may use.", now.planned_total_bytes),
        ("plan_weights_bytes", "Weights, as planned.", now.planned_weight_bytes),
        ("plan_kv_cache_bytes", "KV cache, as planned.", now.planned_kv_cache_bytes),
        ("plan_activation_bytes", "Activations and logits of the largest step, as planned.",
         now.planned_activation_bytes),
    ):  # fmt: skip
        if value:
            yield _gauge(f"forebay_{name}", help_text, labels, value)


def num_waiting(now: StateSnapshot) -> float:
    """Choices that wait: in the engine's queue, or not handed to the engine yet."""
    return now.num_waiting + max(0.0, now.num_in_flight - now.num_in_engine)


def _counters(now: StateSnapshot, slots: Sequence[float], prefix: str, labels: dict[str, str]) -> Iterable[Metric]:
    for name, help_text, value in (
        ("prompt_tokens", "Prompt tokens, cached ones included.", now.num_prompt_tokens),
        ("generation_tokens", "Generated tokens.", now.num_generation_tokens),
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", now.prefix_cache_queries),
        ("prompt_tokens_cached", "Prompt tokens that were not computed again.", now.prefix_cache_hits),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", now.prefix_cache_hits),
        ("num_preemptions", "Requests that lost their blocks and start over.", now.num_preemptions),
        ("admission_rejections", "Requests refused with 429.", now.num_admission_rejections),
        ("engine_restarts", "Engines started because the one before ended or hung.", now.num_engine_restarts),
    ):
        family = CounterMetricFamily(prefix + name, help_text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        yield family
    finished = CounterMetricFamily(prefix + "request_success", "Finished choices.", labels=[*labels, "finished_reason"])
    for reason, value in zip(FINISH_REASONS, slots, strict=False):
        finished.add_metric([*labels.values(), reason], value)
    yield finished


def _histogram(histogram: Histogram, slots: Sequence[float], name: str, labels: dict[str, str]) -> Metric:
    family = HistogramMetricFamily(name, histogram.help, labels=list(labels))
    row = slots[histogram.first_slot : histogram.first_slot + histogram.num_slots]
    total, buckets = 0.0, []
    for bound, count in zip((*map(str, histogram.buckets), "+Inf"), row, strict=False):
        total += count
        buckets.append((bound, total))
    family.add_metric(list(labels.values()), buckets, row[-1])
    return family


def _gauge(name: str, help_text: str, labels: dict[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
