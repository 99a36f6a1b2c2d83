"""Search: try every option that a request allows; the first that fits, in order of preference, is chosen."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from forebay_operator.planner.attempt import Attempt, try_option
from forebay_operator.planner.options import Formats, Impossible, allowed_formats, cuts, option_of
from forebay_operator.planner.request import PlanRequest
from forebay_operator.planner.result import Rejected


@dataclass(slots=True)
class Search:
    """What came out: either `chosen`, or `impossible`, or attempts that do not fit."""

    chosen: Attempt | None = None
    attempts: list[Attempt] = field(default_factory=list)
    """Everything that was tried and not chosen, in order of preference."""
    ruled_out: list[Rejected] = field(default_factory=list)
    """Formats and cuts that were not even tried."""
    impossible: Impossible | None = None


def search(request: PlanRequest, *, stop_at_first: bool = False) -> Search:
    """Try the options of a request.

    Args:
        request: the question.
        stop_at_first: do not look at what would have come after the chosen one.
    """
    result = Search(impossible=_impossible(request))
    if result.impossible is not None:
        return result
    pairs, result.ruled_out, result.impossible = allowed_formats(request)
    if result.impossible is not None:
        return result
    ways, result.impossible = cuts(request)
    if result.impossible is not None:
        return result
    problems: dict[str, Rejected] = {}
    for formats, way in _in_order(pairs, ways):
        option = option_of(request.facts, formats, *way)
        if isinstance(option, str):
            problems.setdefault(option, Rejected(f"TP {way[0]}", option))
            continue
        attempt = try_option(request, option)
        if result.chosen is None and attempt.fits:
            result.chosen = attempt
            if stop_at_first:
                return result
        else:
            result.attempts.append(attempt)
    result.ruled_out.extend(problems.values())
    if result.chosen is None and not result.attempts:
        result.impossible = Impossible("TensorParallelism", "; ".join(problems))
    return result


def feasible(request: PlanRequest) -> Attempt | None:
    """The attempt that a plan would be made of; None when nothing fits."""
    return search(request, stop_at_first=True).chosen


def closest(request: PlanRequest) -> Attempt | None:
    """The attempt that comes closest to fitting; None when none was possible at all."""
    attempts = search(request).attempts
    return nearest(attempts) if attempts else None


def nearest(attempts: list[Attempt]) -> Attempt:
    """The attempt with the least that is missing."""
    return max(attempts, key=lambda attempt: (attempt.memory.headroom, attempt.kv_tokens))


def _in_order(pairs: list[Formats], ways: list[tuple[int, int]]) -> Iterator[tuple[Formats, tuple[int, int]]]:
    """Every combination: within the smallest number of stages the most precise formats first, then fewest ranks.

    So another format is tried before a second node is taken.
    """
    for _, group in groupby(ways, key=lambda way: way[1]):
        same_stages = list(group)
        for formats in pairs:
            for way in same_stages:
                yield formats, way


def _impossible(request: PlanRequest) -> Impossible | None:
    """Wishes that contradict the model or one another."""
    facts, budget = request.facts, request.kv_budget
    if request.model_len > facts.max_positions:
        return Impossible(
            "ContextTooLong",
            f"maxModelLen {request.model_len:,} is more than the model's {facts.max_positions:,} positions",
        )
    if budget.kind == "sequences" and request.max_num_seqs != "auto" and request.max_num_seqs < budget.amount:
        return Impossible(
            "MaxNumSeqsTooSmall",
            f"maxNumSeqs {request.max_num_seqs} is less than the {budget.amount} sequences that the KV budget promises",
        )
    if (
        request.max_num_seqs != "auto"
        and request.max_num_batched_tokens != "auto"
        and request.max_num_batched_tokens < request.max_num_seqs
    ):
        return Impossible(
            "MaxNumBatchedTokensTooSmall",
            f"maxNumBatchedTokens {request.max_num_batched_tokens} is less than one token for each of maxNumSeqs "
            f"{request.max_num_seqs}",
        )
    return None
