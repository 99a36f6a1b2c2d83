"""Refusals name what would fit, and what they name does fit."""

from typing import Any

import pytest

from forebay_operator.planner import KVBudget, Plan
from forebay_operator.planner.errors import RequestError
from forebay_operator.planner.plan import plan
from forebay_operator.planner.suggest import suggestions
from tests.test_operator.planner.questions import LLAMA_8B, LLAMA_70B, llama_facts, question, refused

REFUSED = {
    "too many sequences": question(LLAMA_70B, "h100-80gb", 16),
    "one small GPU": question(LLAMA_70B, "l4-24gb", gpus_per_node=1, max_model_len=4096),
    "tensor too small": question(LLAMA_70B, "h100-80gb", 4, tensor=1, max_model_len=8192),
    "heads do not divide": question(LLAMA_8B, "h100-80gb", tensor=3),
    "fp8 on t4": question(LLAMA_8B, "t4-16gb", weights="fp8", max_model_len=2048),
    "below the floor": question(LLAMA_8B, "h100-80gb", weights="int8", floor="bf16"),
    "context too long": question(LLAMA_8B, "h100-80gb", max_model_len=200_000),
    "tokens below a sequence": question(LLAMA_8B, "h100-80gb", kv_budget=KVBudget("tokens", 100), max_model_len=4096),
    "too many tokens": question(LLAMA_8B, "l4-24gb", kv_budget=KVBudget("tokens", 10**6), gpus_per_node=1),
    "too many bytes": question(LLAMA_8B, "l4-24gb", kv_budget=KVBudget("bytes", 30 << 30), gpus_per_node=1),
    "cpu budget": question("HuggingFaceTB/SmolLM2-135M-Instruct", "cpu", 64, memory_bytes=2 << 30),
    "fewer running than promised": question(LLAMA_8B, "h100-80gb", 16, max_model_len=2048, max_num_seqs=8),
    "more GPUs than the node": question(LLAMA_8B, "h100-80gb", tensor=16),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_suggestion_fits_when_applied(name: str) -> None:
    request = REFUSED[name]
    refusal, found = refused(request), suggestions(request)
    assert found
    assert refusal.suggestions == tuple(suggestion.text for suggestion in found)
    for suggestion in found:
        assert isinstance(plan(suggestion.request), Plan), suggestion.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("too many sequences", "kvBudget.concurrentSequences: 12"),
        ("too many sequences", "quantization.kvCache: fp8"),
        ("tensor too small", "parallelism.tensor: 2"),
        ("heads do not divide", "parallelism.tensor: 1"),
        ("fp8 on t4", "quantization.weights: int8"),
        ("below the floor", "quantization.floor: none"),
        ("tokens below a sequence", "kvBudget.tokens: 4096"),
        ("tokens below a sequence", "context.maxModelLen: 112"),
        ("fewer running than promised", "kvBudget.concurrentSequences: 8"),
    ],
)
def test_suggestions_are_the_smallest_changes(name: str, text: str) -> None:
    assert text in refused(REFUSED[name]).suggestions


def test_the_next_smaller_change_would_not_fit() -> None:
    request = REFUSED["too many sequences"]
    assert refused(question(LLAMA_70B, "h100-80gb", 13))
    longer = next(s for s in suggestions(request) if s.text.startswith("context.maxModelLen"))
    assert longer.request.max_model_len is not None
    assert refused(question(LLAMA_70B, "h100-80gb", 16, max_model_len=longer.request.max_model_len + 256))


def test_a_cpu_pod_is_told_the_memory_it_needs() -> None:
    (text,) = (line for line in refused(REFUSED["cpu budget"]).suggestions if line.startswith("accelerator.memory"))
    assert text.endswith(("Gi", "Mi"))


def test_nothing_is_suggested_that_would_not_fit() -> None:
    assert refused(question(LLAMA_70B, "cpu", memory_bytes=1 << 20, max_model_len=256, weights="fp8")).suggestions == ()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"tensor": 0}, "tensor"),
        ({"max_model_len": -1}, "max_model_len"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"allowed": ("bf17",)}, "quantization"),
    ],
)
def test_nonsense_is_an_error_that_names_the_field(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(RequestError, match=key):
        question(llama_facts(), "h100-80gb", **changes)


@pytest.mark.parametrize(("kind", "amount"), [("sequences", 0), ("percent", 101), ("tokens", -5), ("fraction", 1)])
def test_a_budget_out_of_range_is_an_error(kind: str, amount: int) -> None:
    with pytest.raises(RequestError, match="kvBudget"):
        KVBudget(kind, amount)  # type: ignore[arg-type]


def test_the_cpu_needs_a_budget_of_memory() -> None:
    with pytest.raises(RequestError, match=r"accelerator\.memory"):
        question(llama_facts(), "cpu")
