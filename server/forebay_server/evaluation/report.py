"""An evaluation as text and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forebay_server.evaluation.summary import Check, Estimate, Summary


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that was measured, and the verdict."""

    model: str
    baseline: str
    candidate: str
    prompts: str
    """Where they come from."""
    summary: Summary
    checks: list[Check]

    @property
    def passed(self) -> bool:
        """Whether the candidate holds every threshold."""
        return all(check.passed for check in self.checks)


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Plain data; the verdict as `passed`."""
    return {**asdict(evaluation), "passed": evaluation.passed}


def as_text(evaluation: Evaluation) -> str:
    """The figures, then one line for each threshold, then the verdict."""
    summary = evaluation.summary
    lines = [
        f"{evaluation.model}: {evaluation.candidate} against {evaluation.baseline}",
        f"{summary.num_prompts} prompts ({evaluation.prompts}), {summary.num_tokens:,} scored tokens; 95 % intervals",
        "",
        f"{'perplexity, baseline':28}{_plain(summary.baseline_perplexity, '.3f')}",
        f"{'perplexity, candidate':28}{_plain(summary.candidate_perplexity, '.3f')}",
        f"{'perplexity increase':28}{_plain(summary.perplexity_increase, '+.2%')}",
        f"{'KL divergence, mean':28}{_plain(summary.kl_mean, '.4f')}",
        f"{'KL divergence, p99':28}{_plain(summary.kl_p99, '.4f')}",
        f"{'greedy agreement (top-1)':28}{_plain(summary.top1_agreement, '.3f')}",
        "",
        *(_check_line(check) for check in evaluation.checks),
        "",
        f"verdict: {'PASS' if evaluation.passed else 'FAIL'}",
    ]
    return "\n".join(lines)


def failed_names(checks: Sequence[Check]) -> list[str]:
    """Which thresholds are broken."""
    return [check.name for check in checks if not check.passed]


def _plain(estimate: Estimate, form: str) -> str:
    return f"{format(estimate.value, form):>10}   [{estimate.low:{form}}, {estimate.high:{form}}]"


def _check_line(check: Check) -> str:
    word = "ok" if check.passed else "BROKEN"
    doubt = "" if check.is_clear else "  (the interval crosses it: more prompts would settle it)"
    return f"{check.name + ' ' + check.limit:38}{word}{doubt}"
