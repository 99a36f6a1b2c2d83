"""From tokens to figures with confidence intervals (bootstrap over prompts), and from figures to a verdict. Pure.

Tokens of one prompt depend on each other, so whole prompts are drawn with replacement (Efron and Tibshirani, An
Introduction to the Bootstrap, 1993); the interval is the middle 95 % of the figures of the draws.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from forebay_server.evaluation.comparison import Floats, PromptComparison

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What all prompts showed."""

    num_prompts: int
    num_tokens: int
    kl_mean: Estimate
    """Nats a token."""
    kl_p99: Estimate
    top1_agreement: Estimate
    """Share of positions at which both would pick the same token greedily."""
    baseline_perplexity: Estimate
    candidate_perplexity: Estimate
    perplexity_increase: Estimate
    """Candidate over baseline, less 1."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a candidate must hold."""

    max_kl: float = 0.02
    min_top1: float = 0.93
    max_perplexity_increase: float = 0.02


@dataclass(frozen=True, slots=True)
class Check:
    """One threshold and what came of it."""

    name: str
    limit: str
    measured: Estimate
    passed: bool
    is_clear: bool
    """Whether the whole confidence interval lies on the same side of the threshold."""


def summarize(prompts: Sequence[PromptComparison], num_draws: int = 1000, seed: int = 0) -> Summary:
    """Figures over all tokens of all prompts.

    Args:
        prompts: at least one, each with at least one token.
        num_draws: of the bootstrap; at least 1.
        seed: of the draws.

    Raises:
        ValueError: no prompt has a token.
    """
    prompts = [prompt for prompt in prompts if prompt.num_tokens]
    if not prompts:
        raise ValueError("no token was scored")
    counts = np.array([prompt.num_tokens for prompt in prompts], dtype=np.float64)
    draws = np.random.default_rng(seed).integers(len(prompts), size=(num_draws, len(prompts)))

    def mean(
        values: Callable[[PromptComparison], Floats], change: Callable[[Floats], Floats] = lambda x: x
    ) -> Estimate:
        sums = np.array([values(prompt).sum() for prompt in prompts], dtype=np.float64)
        drawn = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
        return _estimate(float(change(sums.sum() / counts.sum())), change(drawn))

    all_kl = [prompt.kl for prompt in prompts]
    drawn_p99 = np.array([np.quantile(np.concatenate([all_kl[i] for i in draw]), 0.99) for draw in draws])
    return Summary(
        num_prompts=len(prompts),
        num_tokens=int(counts.sum()),
        kl_mean=mean(lambda prompt: prompt.kl),
        kl_p99=_estimate(float(np.quantile(np.concatenate(all_kl), 0.99)), drawn_p99),
        top1_agreement=mean(lambda prompt: prompt.same_top1.astype(np.float64)),
        baseline_perplexity=mean(lambda prompt: prompt.baseline_nll, np.exp),
        candidate_perplexity=mean(lambda prompt: prompt.candidate_nll, np.exp),
        perplexity_increase=mean(lambda prompt: prompt.candidate_nll - prompt.baseline_nll, np.expm1),
    )


def judge(summary: Summary, thresholds: Thresholds) -> list[Check]:
    """Hold the figures (not the ends of their intervals) against the thresholds."""
    kl, top1, increase = summary.kl_mean, summary.top1_agreement, summary.perplexity_increase
    return [
        _check("KL divergence, mean", kl, thresholds.max_kl, f"<= {thresholds.max_kl:g}", is_upper=True),
        _check("greedy agreement (top-1)", top1, thresholds.min_top1, f">= {thresholds.min_top1:g}", is_upper=False),
        _check(
            "perplexity increase",
            increase,
            thresholds.max_perplexity_increase,
            f"<= {thresholds.max_perplexity_increase:.1%}",
            is_upper=True,
        ),
    ]


def _check(name: str, measured: Estimate, limit: float, text: str, *, is_upper: bool) -> Check:
    passed = measured.value <= limit if is_upper else measured.value >= limit
    ends = [end <= limit if is_upper else end >= limit for end in (measured.low, measured.high)]
    return Check(name, text, measured, passed, is_clear=all(end == passed for end in ends))


def _estimate(value: float, drawn: Floats) -> Estimate:
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(low), float(high))
