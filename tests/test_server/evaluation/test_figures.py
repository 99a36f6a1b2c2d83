"""The arithmetic of an evaluation, against definitions written out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_server.evaluation.comparison import PromptComparison, compare_logits
from forebay_server.evaluation.summary import Thresholds, judge, summarize

LOGITS = st.lists(st.lists(st.floats(-20, 20), min_size=5, max_size=5), min_size=1, max_size=4)


def prompt(kl: list[float], same: list[bool], nll: list[float], more_nll: float = 0.0) -> PromptComparison:
    baseline = np.array(nll)
    return PromptComparison(baseline, baseline + more_nll, np.array(kl), np.array(same))


def test_divergence_of_a_known_pair() -> None:
    compared = compare_logits(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log(), [0])
    assert compared.kl[0] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert compared.baseline_nll[0] == pytest.approx(-math.log(0.5))
    assert compared.candidate_nll[0] == pytest.approx(-math.log(0.25))


@settings(deadline=None, max_examples=50)
@given(LOGITS, st.floats(-50, 50))
def test_a_model_does_not_differ_from_itself_nor_by_a_constant(rows: list[list[float]], constant: float) -> None:
    logits = torch.tensor(rows, dtype=torch.float64)
    compared = compare_logits(logits, logits + constant, [0] * len(rows))
    assert compared.kl == pytest.approx(0, abs=1e-9)
    assert compared.candidate_nll == pytest.approx(compared.baseline_nll, abs=1e-9)
    assert compare_logits(logits, logits, [0] * len(rows)).same_top1.all()


@settings(deadline=None, max_examples=50)
@given(LOGITS, LOGITS)
def test_divergence_is_never_negative(first: list[list[float]], second: list[list[float]]) -> None:
    n = min(len(first), len(second))
    assert (compare_logits(torch.tensor(first[:n]), torch.tensor(second[:n]), [1] * n).kl >= 0).all()


@pytest.mark.parametrize(
    ("second", "targets", "said"),
    [
        (torch.zeros(2, 4), [0, 0], "do not fit"),
        (torch.zeros(2, 3), [0], "do not fit"),
        (torch.full((2, 3), float("nan")), [0, 0], "not finite"),
    ],
)
def test_what_cannot_be_compared_is_refused(second: torch.Tensor, targets: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compare_logits(torch.zeros(2, 3), second, targets)


def test_figures_weigh_tokens_not_prompts() -> None:
    summary = summarize([prompt([0.1], [False], [1.0]), prompt([0.0] * 3, [True] * 3, [2.0] * 3)])
    assert summary.num_tokens == 4
    assert summary.kl_mean.value == pytest.approx(0.025)
    assert summary.top1_agreement.value == pytest.approx(0.75)
    assert summary.baseline_perplexity.value == pytest.approx(math.exp(7 / 4))


def test_perplexity_increase_is_the_ratio_less_one() -> None:
    summary = summarize([prompt([0.0, 0.0], [True, True], [1.0, 3.0], more_nll=0.01)])
    ratio = summary.candidate_perplexity.value / summary.baseline_perplexity.value
    assert summary.perplexity_increase.value == pytest.approx(ratio - 1) == pytest.approx(math.expm1(0.01))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.floats(0, 5), min_size=1, max_size=6), min_size=2, max_size=8), st.integers(0, 100))
def test_intervals_contain_the_figure_or_touch_it(kls: list[list[float]], seed: int) -> None:
    prompts = [prompt(kl, [True] * len(kl), [1.0] * len(kl)) for kl in kls]
    mean = summarize(prompts, num_draws=400, seed=seed).kl_mean
    assert mean.low <= mean.high
    every = [sum(kl) / len(kl) for kl in kls]
    assert min(every) - 1e-9 <= mean.low
    assert mean.high <= max(every) + 1e-9


def test_equal_prompts_leave_no_doubt_and_different_ones_do() -> None:
    same = summarize([prompt([0.01, 0.03], [True, False], [1.0, 1.0])] * 5)
    assert same.kl_mean.low == pytest.approx(same.kl_mean.high)
    mixed = summarize([prompt([0.0], [True], [1.0]), prompt([0.1], [False], [1.0])] * 5)
    assert mixed.kl_mean.low < mixed.kl_mean.value < mixed.kl_mean.high


def test_each_threshold_is_held_against_its_figure() -> None:
    summary = summarize([prompt([0.03] * 10, [True] * 9 + [False], [1.0] * 10, more_nll=0.01)])
    passed = {check.name: check.passed for check in judge(summary, Thresholds())}
    assert passed == {
        "KL divergence, mean": False,
        "greedy agreement (top-1)": False,
        "perplexity increase": True,
    }
    generous = Thresholds(max_kl=0.03001, min_top1=0.9, max_perplexity_increase=0.011)
    assert all(check.passed for check in judge(summary, generous))


def test_a_verdict_within_the_interval_is_marked_as_unclear() -> None:
    summary = summarize([prompt([0.0], [True], [1.0]), prompt([0.03], [True], [1.0])] * 4)
    by_name = {check.name: check for check in judge(summary, Thresholds())}
    assert by_name["KL divergence, mean"].passed
    assert not by_name["KL divergence, mean"].is_clear
    assert by_name["greedy agreement (top-1)"].is_clear


def test_nothing_scored_is_an_error() -> None:
    with pytest.raises(ValueError, match="no token"):
        summarize([prompt([], [], [])])
