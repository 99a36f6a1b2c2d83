"""The page: one HTML file with sliders and a chart, which loads nothing and sends nothing."""

import html
import json
import re
from dataclasses import asdict
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from forebay_operator.planner.roofline import STEP_OVERHEAD_US
from forebay_operator.roi import calculate, inputs, throughput
from forebay_operator.roi.report import GENERAL, Report
from forebay_operator.roi.steps import OPTIMIZATIONS
from forebay_operator.roi.subject import Subject, gpus, usual_price

CONSTANTS = {
    "hours_per_month": inputs.HOURS_PER_MONTH,
    "seconds_per_day": inputs.SECONDS_PER_DAY,
    "rounding": calculate.ROUNDING,
    "step_overhead_us": STEP_OVERHEAD_US,
    "contiguous_share": throughput.CONTIGUOUS_SHARE,
    "paged_share": throughput.PAGED_SHARE,
    "draft_tokens": throughput.DRAFT_TOKENS,
    "draft_cost": throughput.DRAFT_COST,
}
"""Numbers that both sides use; the page has none of its own."""

MARKER = re.compile(r"\{\{([a-z]+)\}\}")


def page(about: Subject, report: Report) -> str:
    """The whole file.

    Every GPU of the catalogue on which the model fits can be chosen on the page; `report` says what it begins with.
    """
    data = json.dumps(page_data(about, report), separators=(",", ":"))
    parts = {
        "model": html.escape(about.name),
        "version": html.escape(version("forebay")),
        "style": _asset("page.css"),
        "calculation": _asset("roi.js"),
        "behaviour": _asset("page.js"),
        # Inside a script element only `<` could end it; names of models come from a person.
        "data": data.replace("<", "\\u003c"),
    }
    return MARKER.sub(lambda found: parts[found[1]], _asset("page.html"))


def page_data(about: Subject, report: Report) -> dict[str, Any]:
    """Everything that the page calculates with."""
    start = asdict(report.inputs) | {"gpus": report.result.rows[0].gpus}
    accelerators = []
    for name, profile in gpus().items():
        found = about.on(profile)
        if found:
            price = report.inputs.price if name == report.accelerator else usual_price(profile)
            accelerators.append({"name": name, "price": price, "variants": [asdict(variant) for variant in found]})
    return {
        "model": about.name,
        "model_len": about.model_len,
        "accelerator": report.accelerator,
        "inputs": start,
        "accelerators": accelerators,
        "optimizations": [asdict(step) for step in OPTIMIZATIONS],
        "constants": CONSTANTS,
        "general": GENERAL,
    }


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
