"""How long a plan takes once the facts are known, and how long `forebay plan` takes from nothing to its answer.

    .venv/bin/python operator/benchmarks/bench_plan.py

Goals: under 5 ms a plan, under 0.5 s a command. Time on one CPU, the best of several repeats, so that a busy machine
counts less; neither waits for anything.
"""

import os
import subprocess
import sys
import time

from forebay_operator.catalogue.accelerators import accelerators
from forebay_operator.catalogue.models import known_model, known_model_names
from forebay_operator.planner import KVBudget, Plan, PlanRequest
from forebay_operator.planner.plan import plan

REPEATS = 3
MOST_REFUSALS = 100
COMMAND = (sys.executable, "-m", "forebay_cli", "plan", "--model", "meta-llama/Llama-3.3-70B-Instruct",
           "--accelerator", "h100-80gb", "--max-model-len", "8192", "--concurrent-sequences", "16")  # fmt: skip


def main() -> None:
    """Measure and print all."""
    feasible: list[PlanRequest] = []
    refused: list[PlanRequest] = []
    for wish in _wishes():
        (feasible if isinstance(plan(wish), Plan) else refused).append(wish)
    for name, group in (("plans", feasible), ("refusals, each with its suggestions", refused[:MOST_REFUSALS])):
        seconds = min(_seconds_for(group) for _ in range(REPEATS)) / len(group)
        print(f"{len(group)} {name}: {seconds * 1000:.2f} ms each")
    print(f"forebay plan, from start to answer: {min(_command_seconds() for _ in range(REPEATS)):.2f} s")


def _wishes() -> list[PlanRequest]:
    return [
        PlanRequest(facts=facts, accelerator=accelerator, kv_budget=KVBudget("sequences", 4), max_model_len=2048)
        for name in known_model_names()[::4]
        for accelerator in accelerators().values()
        if (facts := known_model(name)) is not None and accelerator.memory_bytes
    ]


def _seconds_for(wishes: list[PlanRequest]) -> float:
    started = time.process_time()
    for wish in wishes:
        plan(wish)
    return time.process_time() - started


def _command_seconds() -> float:
    before = os.times()
    subprocess.run(COMMAND, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    main()
