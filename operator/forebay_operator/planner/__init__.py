"""The planner: parallelism, quantization and KV cache from facts and wishes, by arithmetic that it shows.

`plan(request) -> Plan | Refusal` lies in `forebay_operator.planner.plan`; everything here is pure.
"""

from forebay_operator.planner.request import KVBudget, PlanRequest
from forebay_operator.planner.result import Estimate, MemoryPlan, Plan, Refusal, Rejected

__all__ = ["Estimate", "KVBudget", "MemoryPlan", "Plan", "PlanRequest", "Refusal", "Rejected"]
