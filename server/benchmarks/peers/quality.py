"""What int8 costs in quality, for the comparison: `forebay eval` in a process of its own, with its own thresholds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def evaluate(model: Path, prompts: str | None, timeout_seconds: float = 1800) -> dict[str, Any]:
    """Hold int8 against bfloat16.

    Args:
        model: the bfloat16 folder.
        prompts: a .jsonl file; None: those of the package.
        timeout_seconds: for all of it.

    Returns:
        The JSON of `forebay eval`; where there was none, its reason as `error`.
    """
    command = [sys.executable, "-m", "forebay_cli", "eval", "--model", str(model), "--candidate", "int8", "-o", "json"]
    if prompts is not None:
        command += ["--prompts", prompts]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {timeout_seconds:.0f} s"}
    if done.returncode not in (0, 1) or not done.stdout:
        return {"error": "".join(done.stderr.strip().splitlines()[-1:]) or f"exit code {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def render(found: dict[str, Any]) -> str:
    """A head, then one line for each threshold."""
    if "error" in found:
        return f"quality: not measured: {found['error']}"
    summary = found["summary"]
    lines = [
        f"quality of {found['candidate']} against {found['baseline']}: {summary['num_prompts']} prompts, "
        f"{summary['num_tokens']:,} tokens that both read; 95 % intervals"
    ]
    for check in found["checks"]:
        form = ".2%" if check["limit"].endswith("%") else ".4f"
        value, low, high = (format(check["measured"][key], form) for key in ("value", "low", "high"))
        word = "met" if check["passed"] else "MISSED"
        lines.append(f"{check['name']:36}{check['limit']:>10}{value:>10}  {word}, [{low}, {high}]")
    return "\n".join(lines)
