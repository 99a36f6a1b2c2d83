"""The arithmetic of a load: percentiles, rates, goodput, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_server.bench.distribution import distribution, percentile
from forebay_server.bench.load_metrics import load_figures
from forebay_server.bench.records import RequestRecord
from forebay_server.bench.serve_report import as_text
from forebay_server.bench.slo import Objectives, parse_objectives


def answered(index: int, sent: float, times: list[float], *, scheduled: float | None = None) -> RequestRecord:
    return RequestRecord(
        index,
        sent if scheduled is None else scheduled,
        sent=sent,
        chunk_times=times,
        chunk_tokens=[1] * len(times),
        ended=times[-1] + 0.5,
        prompt_tokens=10,
        output_tokens=len(times),
    )


def failed(index: int, sent: float, ended: float, kind: str) -> RequestRecord:
    return RequestRecord(index, sent, sent=sent, ended=ended, error=kind)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    expected = float(np.quantile(values, share))
    assert percentile(sorted(values), share) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_distribution_is_in_order(values: list[float]) -> None:
    found = distribution(values)
    assert found is not None
    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= found.max == max(values)
    assert found.count == len(values)


def test_nothing_has_no_distribution() -> None:
    assert distribution([]) is None


def test_times_of_a_request() -> None:
    record = answered(0, 1.0, [1.25, 1.5, 2.0])
    assert record.ttft == 0.25
    assert record.gaps == [0.25, 0.5]
    assert record.tpot == pytest.approx(0.75 / 2)
    assert record.latency == 1.5
    assert answered(0, 1.0, [1.25]).tpot is None


def test_time_per_token_counts_tokens_not_chunks() -> None:
    record = answered(0, 0.0, [1.0, 2.0])
    record.output_tokens = 11
    assert record.tpot == pytest.approx(0.1)


def test_figures_of_a_load() -> None:
    records = [
        answered(0, 10.0, [10.1, 10.2], scheduled=9.5),
        answered(1, 10.0, [10.4, 10.5]),
        failed(2, 11.0, 12.0, "http 429"),
        failed(3, 11.0, 14.0, "http 429"),
        failed(4, 11.0, 12.0, "timeout"),
    ]
    figures = load_figures(records, Objectives(ttft=0.2))
    assert figures.duration == pytest.approx(4.0)
    assert (figures.num_requests, figures.num_ok) == (5, 2)
    assert figures.errors == {"http 429": 2, "timeout": 1}
    assert list(figures.errors) == ["http 429", "timeout"]
    assert figures.output_tokens_per_second == pytest.approx(1.0)
    assert figures.total_tokens_per_second == pytest.approx(6.0)
    assert figures.requests_per_second == pytest.approx(0.5)
    assert figures.num_good == 1
    assert figures.goodput_per_second == pytest.approx(0.25)
    assert figures.ttft is not None
    assert figures.ttft.max == pytest.approx(0.4)
    assert figures.send_delay is not None
    assert figures.send_delay.max == pytest.approx(0.5)
    assert figures.mean_concurrency == pytest.approx((0.7 + 1.0 + 1 + 3 + 1) / 4)


def test_a_load_that_failed_entirely_still_has_a_report() -> None:
    figures = load_figures([failed(0, 1.0, 1.0, "connection")], None)
    assert figures.num_ok == 0
    assert figures.ttft is None
    assert figures.goodput_per_second is None
    settings_ = {"model": "m", "base_url": "u", "endpoint": "chat", "arrivals": "a", "slo": None}
    shown = as_text(settings_, figures, {"connection": "refused"})
    assert "failed: connection" in shown
    assert "refused" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft=500ms,itl=50ms", Objectives(ttft=0.5, itl=0.05)),
        ("e2e=1.5s", Objectives(e2e=1.5)),
        (" gap=200ms , tpot=0.5ms ", Objectives(gap=0.2, tpot=0.0005)),
    ],
)
def test_objectives_are_read(text: str, expected: Objectives) -> None:
    assert parse_objectives(text) == expected


@pytest.mark.parametrize("text", ["", "ttft", "ttft=500", "latency=5ms", "ttft=ms", "ttft=5ms,", "ttft=-5ms"])
def test_bad_objectives_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wanted"):
        parse_objectives(text)


def test_every_objective_can_be_missed() -> None:
    record = answered(0, 0.0, [0.5, 1.0, 2.0])
    met = {"ttft": 0.5, "itl": 0.75, "gap": 1.0, "tpot": 0.75, "e2e": 2.5}
    assert Objectives(**met).are_met_by(record)
    for key, limit in met.items():
        assert not Objectives(**{key: limit * 0.99}).are_met_by(record), key


def test_a_failed_request_is_never_good() -> None:
    assert not Objectives().are_met_by(failed(0, 0.0, 0.1, "timeout"))
