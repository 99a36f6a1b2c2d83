"""Search: try every option that a request allows; the first that fits, in order of preference, is chosen."""

from dataclasses import dataclass, field

from forebay_operator.planner.attempt import Attempt, try_option
from forebay_operator.planner.options import Impossible, Option, allowed_formats, cuts, options_of
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
    for formats in pairs:
        for option in options_of(request.facts, formats, ways):
            if not isinstance(option, Option):
                tensor, problem = option
                problems.setdefault(problem, Rejected(f"TP {tensor}", problem))
                continue
            attempt = try_option(request, option)
            if result.chosen is None and attempt.fits and _is_needed(attempt, result):
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


def _is_needed(attempt: Attempt, result: Search) -> bool:
    """Several nodes only when no option within one node fits."""
    return attempt.option.pipeline == 1 or result.chosen is None


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
