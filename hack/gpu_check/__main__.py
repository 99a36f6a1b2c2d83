"""Runs the parts one after the other, each in a process of its own with its own time limit, and writes one JSON file.

A part that fails or hangs costs its own result alone, and of that only what it had not told yet: a part may tell its
result several times, each time with more. After each part the file is written anew.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGETS = {
    "nano_tokens_per_second": 18_000,
    "nano_tokens_per_second_goal": 25_000,
    "nano_int8_cache_gain": 1.3,
    "batch_1_milliseconds_per_token": 2.0,
}
"""On one H200."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part."""

    name: str
    limit_seconds: int
    does: str


PARTS = (
    Part("environment", 30, "versions, driver, GPU, and what is missing"),
    Part("kernels", 25, "one kernel compiled and compared: the first sign of life"),
    Part("answers", 40, "a small model's answers, with and without overlap, beside those of torch on the CPU"),
    Part("nano", 90, "256 sequences of 100-1024 tokens in and out, random weights of Qwen3-0.6B's shape, bfloat16"),
    Part("latency", 45, "time per token of one sequence"),
    Part("nano-int8-cache", 50, "the first workload with keys and values of 8 bits"),
    Part("tests", 140, "the kernels' tests, for real"),
    Part("roofline", 55, "the share of the roofline that each kernel reaches"),
)
"""The limits add up to less than 8 minutes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 when every part ended well."""
    options = _parser().parse_args(arguments)
    if options.part is not None:
        from hack.gpu_check import parts

        parts.tell(parts.RUN[options.part](is_dry=options.dry_run))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a part that runs is ended, too
    wanted = [part for part in PARTS if not options.only or part.name in options.only]
    report: dict[str, Any] = {"dry_run": options.dry_run, "targets": TARGETS, "parts": {}}
    started = time.monotonic()
    for part in wanted:
        print(f"== {part.name} ({part.limit_seconds} s at most): {part.does}", flush=True)
        found = run_part(part.name, part.limit_seconds * options.limit_factor, is_dry=options.dry_run)
        report["parts"][part.name] = found
        report["seconds"] = round(time.monotonic() - started, 1)
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"   {'ok' if found['ok'] else 'FAILED'} in {found['seconds']} s: {summary(found)}", flush=True)
    print(
        f"{options.output}: {sum(found['ok'] for found in report['parts'].values())} of {len(wanted)} parts ended well"
    )
    return 0 if all(found["ok"] for found in report["parts"].values()) else 1


def run_part(name: str, limit_seconds: float, *, is_dry: bool) -> dict[str, Any]:
    """What a part found, or how it failed; its processes are gone afterwards."""
    command = [sys.executable, "-m", "hack.gpu_check", "--part", name, *(["--dry-run"] if is_dry else [])]
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if is_dry else {})
    started = time.monotonic()
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
    ):
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, start_new_session=True)
        try:
            code: int | None = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        errors.seek(0)
        told, complaint = output.read(), errors.read()
    found: dict[str, Any] = {"ok": code == 0, "seconds": round(time.monotonic() - started, 1)}
    results = list(filter(None, map(_result, told.splitlines())))
    if results:
        found["result"] = results[-1]
    else:
        found["ok"] = False
    if code is None:
        found["error"] = f"stopped after {limit_seconds:g} s"
    elif not found["ok"]:
        found["error"] = f"exit status {code}"
    if not found["ok"]:
        found["output"] = (told + complaint)[-4000:]
    elif found["result"].get("ok") is False:
        found["ok"] = False
    return found


def _result(line: str) -> dict[str, Any] | None:
    """What a line tells, if it is a result as a whole."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def summary(found: dict[str, Any]) -> str:
    """A part's result in one line."""
    result = found.get("result", found.get("error"))
    if isinstance(result, dict):
        result = {key: value for key, value in result.items() if not isinstance(value, list | dict)}
    return str(result)[:300]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part's whole session: pytest's workers, too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hack/gpu_check.sh",
        description="Check and measure Forebay on one GPU in under 8 minutes. Parts: "
        + "; ".join(f"{part.name} ({part.does})" for part in PARTS),
        epilog="examples:\n  hack/gpu_check.sh --output h200.json\n  hack/gpu_check.sh --only tests nano\n"
        "  hack/gpu_check.sh --dry-run      # without a GPU: tiny shapes, kernels in Triton's interpreter",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--output", type=Path, default=Path("gpu-check.json"), help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help="these parts; default: all")
    parser.add_argument("--dry-run", action="store_true", help="the same on a CPU with tiny shapes; measures nothing")
    parser.add_argument("--limit-factor", type=float, default=1.0, help="multiply the time limits; default: 1")
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
