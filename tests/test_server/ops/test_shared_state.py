"""Numbers shared through memory, and the metrics made of them."""

import os
import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families

from forebay_server.metrics import HISTOGRAMS, RequestMetrics, render_metrics
from forebay_server.ops.reports import TokenRate, load_report, startup_report
from forebay_server.ops.shared_state import Phase, SharedState


def test_what_one_process_writes_another_reads() -> None:
    state = SharedState.create()
    script = (
        "import sys; from forebay_server.ops.shared_state import Phase, SharedState\n"
        "state = SharedState(int(sys.argv[1]))\n"
        "state.set_phase(Phase.WARMING); state.set_progress(3, 7)\n"
        "state.record_step(num_running=2, num_waiting=1, kv_used_blocks=5, kv_total_blocks=10, new_preemptions=4)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-c", script, str(state.file_descriptor)],
        pass_fds=[state.file_descriptor],
        env=environment,
        check=True,
    )
    now = state.snapshot()
    assert now.phase == Phase.WARMING
    assert (now.bytes_done, now.bytes_total, now.step_count, now.num_preemptions) == (3, 7, 1, 4)
    report = load_report(now, 12.34)
    assert report["running"] == 2
    assert report["waiting"] == 1
    assert report["kvUsage"] == 0.5
    assert report["tokensPerSecond"] == 12.3


def test_only_new_bytes_are_progress() -> None:
    state = SharedState.create()
    state.set_progress(10, 100)
    first = state.get("last_progress")
    state.set_progress(10, 100)
    assert state.get("last_progress") == first
    state.set_progress(11, 100)
    assert state.get("last_progress") > first
    assert startup_report(state.snapshot(), first + 5, None)["bytesDone"] == 11


def test_requests_that_the_engine_has_not_got_yet_count_as_waiting() -> None:
    state = SharedState.create()
    state.record_step(num_running=4, num_waiting=3, kv_used_blocks=1, kv_total_blocks=2)
    state.put("num_in_flight", 10)
    state.put("num_in_engine", 7)
    assert load_report(state.snapshot(), 0.0)["waiting"] == 6


def test_the_rate_is_nothing_at_first() -> None:
    state = SharedState.create()
    rate = TokenRate(state)
    state.add("num_generation_tokens", 100)
    assert rate.tokens_per_second() == 0.0


def test_metrics_can_be_parsed_and_count_right() -> None:
    state = SharedState.create()
    metrics = RequestMetrics(state)
    for value in (0.0005, 0.03, 0.03, 5000.0):
        metrics.observe("time_to_first_token_seconds", value)
    metrics.observe("request_prompt_tokens", 7)
    metrics.count_finished("length")
    body, content_type = render_metrics(state, 'a "model"')
    assert content_type.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert 'model_name="a \\"model\\""' in body.decode()
    for name in HISTOGRAMS:
        assert f"forebay_{name}" in families
        assert f"vllm:{name}" in families
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"):
        assert f"vllm:{name}" in families
    by_bound = {
        sample.labels["le"]: sample.value
        for sample in families["vllm:time_to_first_token_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert by_bound["0.001"] == 1
    assert by_bound["0.02"] == 1
    assert by_bound["0.04"] == 3
    assert by_bound["2560.0"] == 3
    assert by_bound["+Inf"] == 4
    sums = {
        sample.name: sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name.endswith("_sum")
    }
    assert sums["forebay_time_to_first_token_seconds_sum"] == 5000.0605
    assert sums["forebay_request_prompt_tokens_sum"] == 7
    finished = {
        sample.labels["finished_reason"]: sample.value for sample in families["forebay_request_success"].samples
    }
    assert finished == {"stop": 0, "length": 1, "abort": 0, "error": 0}


def test_a_start_tells_what_computes_once_it_is_known() -> None:
    state = SharedState.create()
    assert "computedBy" not in startup_report(state.snapshot(), 0.0, None)
    for number, name in enumerate(("torch", "cpu library", "triton"), 1):
        state.put("computed_by", number)
        assert startup_report(state.snapshot(), 0.0, None)["computedBy"] == name
