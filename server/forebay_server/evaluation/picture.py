"""An evaluation as a PNG: where the divergence is, and how the figures stand against their limits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from forebay_server.evaluation.comparison import PromptComparison
from forebay_server.evaluation.report import Evaluation
from forebay_server.evaluation.summary import Thresholds

BLUE, RED, GREY = "#1f5fa8", "#b8322a", "#777777"
SMALLEST_KL = 1e-7


def draw(evaluation: Evaluation, prompts: Sequence[PromptComparison], thresholds: Thresholds, path: Path) -> None:
    """Write the picture."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    FigureCanvasAgg(figure)
    by_token, by_prompt, limits = figure.subplots(1, 3)

    kl = np.sort(np.concatenate([prompt.kl for prompt in prompts]))
    share_above = 1 - np.arange(len(kl)) / len(kl)
    by_token.plot(np.maximum(kl, SMALLEST_KL), share_above, color=BLUE)
    by_token.axvline(evaluation.summary.kl_mean.value, color=BLUE, linestyle=":", label="mean")
    by_token.axvline(thresholds.max_kl, color=RED, linestyle="--", label="limit of the mean")
    by_token.set(xscale="log", yscale="log", xlabel="KL divergence, nats", ylabel="share of tokens above")
    by_token.legend(frameon=False)

    baseline = [float(prompt.baseline_nll.mean()) for prompt in prompts]
    candidate = [float(prompt.candidate_nll.mean()) for prompt in prompts]
    ends = [min(baseline + candidate), max(baseline + candidate)]
    by_prompt.plot(ends, ends, color=GREY, linewidth=0.8)
    by_prompt.scatter(baseline, candidate, s=12, color=BLUE)
    by_prompt.set(xlabel=f"{evaluation.baseline}: -log p a token", ylabel=f"{evaluation.candidate}, each prompt a dot")

    summary = evaluation.summary
    shares = [
        (summary.kl_mean, thresholds.max_kl, "KL mean"),
        (summary.perplexity_increase, thresholds.max_perplexity_increase, "perplexity increase"),
    ]
    names, position = [], 0
    for estimate, limit, name in shares:
        low, high = (estimate.value - estimate.low) / limit, (estimate.high - estimate.value) / limit
        color = BLUE if estimate.value <= limit else RED
        limits.errorbar(estimate.value / limit, position, xerr=[[max(low, 0)], [max(high, 0)]], fmt="o", color=color)
        names.append(name)
        position += 1
    top1, allowed = summary.top1_agreement, max(1 - thresholds.min_top1, 1e-9)
    color = BLUE if top1.value >= thresholds.min_top1 else RED
    spread = [[max(top1.high - top1.value, 0) / allowed], [max(top1.value - top1.low, 0) / allowed]]
    limits.errorbar((1 - top1.value) / allowed, position, xerr=spread, fmt="o", color=color)
    names.append("greedy disagreement")
    limits.axvline(1, color=RED, linestyle="--")
    limits.set(yticks=range(len(names)), yticklabels=names, xlabel="share of what is allowed, with 95 % interval")
    limits.set_xlim(left=min(0, limits.get_xlim()[0]))

    verdict = "passes" if evaluation.passed else "FAILS"
    figure.suptitle(
        f"{evaluation.model}: {evaluation.candidate} against {evaluation.baseline} {verdict} "
        f"({summary.num_prompts} prompts, {summary.num_tokens:,} tokens)"
    )
    figure.savefig(path, dpi=120, format="png")
