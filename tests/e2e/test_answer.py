"""kubectl apply, and an answer from a real model through the official client."""

import asyncio
import json
import statistics

import openai
import pytest

from hack.kube import get
from tests.e2e.cluster import OPS_PORT, Service, fetch

NUM_STREAMS = 50


def test_the_example_answers_a_chat_request(smollm2: Service) -> None:
    client = smollm2.client()
    assert [m.id for m in client.models.list().data] == ["smollm2"]
    answer = client.chat.completions.create(
        model="smollm2",
        # without the second sentence two first tokens are all but equally likely
        messages=[{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
        temperature=0,
        max_tokens=24,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_status_shows_the_plan_and_its_arithmetic(smollm2: Service) -> None:
    status = smollm2.status
    plan = status["plan"]
    # SmolLM2-135M: 30 layers, 3 kv heads of 64, two numbers of two bytes.
    assert plan["kvBytesPerToken"] == 2 * 30 * 3 * 64 * 2
    assert plan["guaranteed"] == {"sequences": 8, "length": 4096}
    assert plan["kvCacheTokens"] >= 8 * 4096
    assert any("23,040" in line or "23040" in line for line in plan["explanation"])
    assert status["readyReplicas"] == status["replicas"] == 1
    assert status["endpoint"].startswith("http://smollm2.")
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    for kind in ("SpecValid", "ReferencesResolved", "PlanFeasible", "Ready"):
        assert conditions[kind] == "True"


def test_the_engine_allocates_what_the_plan_says(smollm2: Service) -> None:
    plan = smollm2.status["plan"]
    _, body, _ = fetch(f"http://{smollm2.pod_ips[0]}:{OPS_PORT}/metrics")
    capacity = next(
        float(line.rsplit(" ", 1)[1])
        for line in body.splitlines()
        if line.startswith("forebay_kv_cache_capacity_tokens{")
    )
    assert capacity == plan["kvCacheTokens"]


def test_children_are_owned_and_carry_no_token(smollm2: Service) -> None:
    uid = smollm2.resource["metadata"]["uid"]
    for kind in ("deployment", "service", "serviceaccount"):
        child = get(kind, smollm2.name, smollm2.namespace)
        assert child is not None
        assert [o["uid"] for o in child["metadata"]["ownerReferences"]] == [uid]
    (pod,) = smollm2.pods
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not any("serviceAccountToken" in json.dumps(v) for v in pod["spec"]["volumes"])


async def test_fifty_streams_finish_while_the_probes_answer_quickly(smollm2: Service) -> None:
    pod_ip = smollm2.pod_ips[0]
    client = smollm2.async_client()

    async def stream(number: int) -> tuple[str | None, int]:
        reason, tokens = None, 0
        async for chunk in await client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": f"Count from {number} upwards."}],
            temperature=0,
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        ):
            if chunk.usage is not None:
                tokens = chunk.usage.completion_tokens
            if chunk.choices and chunk.choices[0].finish_reason:
                reason = chunk.choices[0].finish_reason
        return reason, tokens

    streams = asyncio.gather(*(stream(n) for n in range(NUM_STREAMS)))
    latencies: dict[str, list[float]] = {"/livez": [], "/metrics": []}
    while not streams.done():
        for path, seen in latencies.items():
            status, _, seconds = await asyncio.to_thread(fetch, f"http://{pod_ip}:{OPS_PORT}{path}")
            assert status == 200
            seen.append(seconds)
        await asyncio.sleep(0.1)
    for reason, tokens in await streams:
        assert (reason == "length" and tokens == 16) or reason == "stop"
    for path, seen in latencies.items():
        print(
            f"{path}: {len(seen)} probes, median {statistics.median(seen) * 1e3:.1f} ms, max {max(seen) * 1e3:.1f} ms"
        )
        assert statistics.median(seen) < 0.1
    await client.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"model": "gpt-4"}, "gpt-4"),
        ({"messages": []}, "messages"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_and_the_next_one_answered(
    smollm2: Service, changes: dict[str, object], said: str
) -> None:
    client = smollm2.client()
    good: dict[str, object] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 2,
    }
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(**(good | changes))  # type: ignore[call-overload]
    assert 400 <= refused.value.status_code < 500
    assert said in refused.value.message
    assert client.chat.completions.create(**good).choices  # type: ignore[call-overload]


def test_load_progress_ends_in_serving(smollm2: Service) -> None:
    status, body, _ = fetch(f"http://{smollm2.pod_ips[0]}:{OPS_PORT}/startupz")
    assert status == 200
    progress = json.loads(body)
    assert progress["phase"] == "serving"
