"""`forebay inspect`: print the facts of a model as one line of JSON; the operator's inspect pod runs it."""  # noqa: A005

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from forebay_operator.facts.errors import FactsError
from forebay_operator.facts.inspect_model import inspect_model
from forebay_operator.facts.model_facts import ModelFacts

EPILOG = """\
examples:
  forebay inspect --model ./SmolLM2-135M-Instruct.gguf
  forebay inspect --model /models/llama --termination-log /dev/termination-log
  forebay inspect --model ./config.json --text

exit status: 0 facts printed; 2 not a model that is supported; 11 not found; 12 not allowed; 16 corrupt.
Errors are JSON too: {"reason": ..., "message": ...}.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="forebay inspect",
        description="Print the facts of a model, read from its metadata alone.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--model", required=True, type=Path, metavar="PATH", help="GGUF file, folder, or config.json")
    result.add_argument("--termination-log", type=Path, metavar="FILE", help="write the same JSON there as well")
    result.add_argument("--text", action="store_true", help="a few lines for people instead of JSON")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is the contract's."""
    arguments = parser().parse_args(argv)
    try:
        facts = inspect_model(arguments.model)
    except FactsError as error:
        text = json.dumps({"reason": error.reason, "message": error.message})
        status = int(error.exit_code)
    else:
        text, status = facts.to_json(), 0
        if arguments.text:
            text = describe(facts)
    if arguments.termination_log is not None:
        try:
            arguments.termination_log.write_text(text)
        except OSError as error:
            sys.stderr.write(f"forebay inspect: {arguments.termination_log}: cannot be written: {error.strerror}\n")
            return 2
    (sys.stdout if status == 0 else sys.stderr).write(text + "\n")
    return status


def describe(facts: ModelFacts) -> str:
    """The facts in a few aligned lines."""
    numbers = sum(kind.numbers_per_token for kind in facts.kv_layers)
    checkpoint = facts.checkpoint
    stored = f"{facts.num_parameters * 2:,} bytes in 16 bits"
    if checkpoint.container == "gguf":
        stored += f" ({checkpoint.gguf_type} is dequantized while loading)"
    elif checkpoint.format not in ("bf16", "fp16", "float32"):
        stored = f"{checkpoint.format}, as the checkpoint holds them"
    rows = [
        ("architecture", facts.architecture),
        ("parameters", f"{facts.num_parameters:,} ({facts.num_active_parameters:,} active for a token)"),
        (
            "layers",
            f"{facts.num_layers} of {facts.hidden_size}, {facts.num_heads} heads, {facts.num_kv_heads} KV heads",
        ),
        ("context", f"{facts.max_positions:,} tokens"),
        ("KV cache", f"{numbers * 2:,} bytes a token in 16 bits"),
        ("files", f"{checkpoint.file_bytes:,} bytes" if checkpoint.file_bytes else "sizes not known"),
        ("in memory", stored),
    ]
    return "\n".join(f"{name:<13} {value}" for name, value in rows)


if __name__ == "__main__":
    sys.exit(main())
