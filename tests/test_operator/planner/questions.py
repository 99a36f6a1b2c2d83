"""Short ways to put questions to the planner in tests."""

from typing import Any

from forebay_operator.catalogue.accelerators import accelerators
from forebay_operator.catalogue.models import known_model
from forebay_operator.facts import ModelFacts
from forebay_operator.facts.inspect_model import facts_of_config
from forebay_operator.planner import KVBudget, Plan, PlanRequest, Refusal
from forebay_operator.planner.plan import plan

LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


def facts_of(name: str) -> ModelFacts:
    facts = known_model(name)
    assert facts is not None
    return facts


def llama_facts(**changes: Any) -> ModelFacts:
    """A small Llama: 4 layers of 512, 8 heads of 64, 4 KV heads."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    }
    return facts_of_config({**config, **changes}, "config.json")


def question(facts: ModelFacts | str, accelerator: str, sequences: int = 1, **changes: Any) -> PlanRequest:
    """A request with a budget in sequences, unless `kv_budget` says otherwise."""
    changes.setdefault("kv_budget", KVBudget("sequences", sequences))
    return PlanRequest(
        facts=facts_of(facts) if isinstance(facts, str) else facts,
        accelerator=accelerators()[accelerator],
        **changes,
    )


def planned(request: PlanRequest) -> Plan:
    answer = plan(request)
    assert isinstance(answer, Plan), answer
    return answer


def refused(request: PlanRequest) -> Refusal:
    answer = plan(request)
    assert isinstance(answer, Refusal), answer
    return answer
