"""`forebay plan`: work out parallelism, quantization and KV cache for a model, as the operator does it."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forebay_operator.catalogue import AcceleratorProfile
from forebay_operator.catalogue.accelerators import accelerators
from forebay_operator.catalogue.models import PREFIX, known_model, known_model_names, published_name
from forebay_operator.facts.errors import FactsError
from forebay_operator.facts.inspect_model import inspect_model
from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.planner import KVBudget, Plan, PlanRequest, Refusal
from forebay_operator.planner.errors import RequestError
from forebay_operator.planner.plan import plan
from forebay_operator.planner.table import comparison_text, plan_text, refusal_text

EPILOG = """\
examples:
  forebay plan --model meta-llama/Llama-3.3-70B-Instruct --accelerator h100-80gb --gpus-per-node 4 \\
               --max-model-len 8192 --concurrent-sequences 16
  forebay plan --model ./SmolLM2-135M-Instruct.gguf --accelerator cpu --memory 3Gi --concurrent-sequences 8
  forebay plan --model hf://Qwen/Qwen3-32B --compare h100-80gb,l40s-48gb,a100-80gb --concurrent-sequences 8
  forebay plan --model hf://org/name@revision --accelerator l4-24gb
  forebay plan -f inferenceservice.yaml --model ./Llama-3.3-70B-Instruct

MODEL is a folder, a config.json or a GGUF file; or org/name of a well-known model, for which nothing is read; or any
model of the Hugging Face Hub as hf://org/name[@revision][/file.gguf], of which only metadata is read, from HF_ENDPOINT
and as the user of HF_TOKEN. The path of a model on a cluster's claim (pvc://) means nothing here: with -f, --model says
what lies there.

exit status: 0 there is a plan; 1 refused, with the changes that would fit; 2 wrong input.
"""

WITH_FILE = ("file", "model", "accelerator", "gpus_per_node", "output")
"""Flags that may stand beside `-f`; the file says everything else."""

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class UsageError(ValueError):
    """Wrong input: one line that names what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request and what the planner says."""

    request: PlanRequest
    result: Plan | Refusal


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="forebay plan",
        description="Work out tensor parallelism, quantization and KV cache for a model, by arithmetic that is shown.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add(
        "--model",
        metavar="MODEL",
        help="folder, config.json, GGUF file, org/name of a well-known model, or hf://org/name; see below",
    )
    add("-f", "--file", type=Path, metavar="FILE", help="read an InferenceService from YAML (- for standard input)")
    add("--accelerator", metavar="NAME", help="a profile of the catalogue; `list` shows them")
    add("--compare", metavar="NAMES", help="several profiles, separated by commas, side by side by cost")
    add("--memory", type=_bytes, metavar="BYTES", help="budget of a cpu pod, such as 8Gi")
    add("--gpus-per-node", type=_positive, metavar="N", help="default: what is usual for the accelerator")
    add("--nodes", type=_positive, default=1, metavar="N", help="nodes that one replica may span (default 1)")
    add("--max-model-len", type=_positive, metavar="TOKENS", help="prompt and answer together; default: the model's")
    budget = result.add_mutually_exclusive_group()
    budget.add_argument("--concurrent-sequences", type=_positive, metavar="N", help="of the longest length, at once")
    budget.add_argument("--kv-tokens", type=_positive, metavar="TOKENS", help="tokens in the cache")
    budget.add_argument("--kv-memory", type=_bytes, metavar="BYTES", help="cache over all GPUs, such as 40Gi")
    budget.add_argument("--kv-memory-percent", type=_positive, metavar="P", help="of what is left (default 100)")
    add("--quantization", default="auto", choices=("auto", "float32", "bf16", "fp16", "fp8", "int8", "int4"),
        help="format of the weights (default auto)")  # fmt: skip
    add(
        "--allowed",
        default="bf16,fp8,int8",
        metavar="FORMATS",
        help="what auto may choose from (default bf16,fp8,int8)",
    )
    add("--floor", choices=("float32", "bf16", "fp16", "fp8", "int8", "int4"), help="never below this precision")
    add("--kv-cache-dtype", default="auto", choices=("auto", "float32", "bf16", "fp16", "fp8", "int8"),
        help="format of the cache (default auto: that of the arithmetic)")  # fmt: skip
    add("--tensor-parallel-size", type=_positive_or_auto, default="auto", metavar="N", help="default auto")
    add("--pipeline-parallel-size", type=_positive_or_auto, default="auto", metavar="N", help="default auto")
    add("--max-num-seqs", type=_positive_or_auto, default="auto", metavar="N", help="default auto")
    add("--max-num-batched-tokens", type=_positive_or_auto, default="auto", metavar="N", help="default auto")
    add("-o", "--output", default="text", choices=("text", "json", "yaml"), help="json: the object of status.plan")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command: 0 there is a plan, 1 refused, 2 wrong input."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.accelerator == "list":
            sys.stdout.write(_accelerator_list())
            return 0
        if arguments.compare is not None and arguments.file is None:
            return _compare(arguments)
        answer = _from_file(arguments) if arguments.file is not None else _answer(_request(arguments))
    except (UsageError, RequestError, FactsError) as error:
        sys.stderr.write(f"forebay plan: {error}\n")
        return 2
    sys.stdout.write(_rendered(answer, arguments.output))
    return 0 if isinstance(answer.result, Plan) else 1


def _answer(request: PlanRequest) -> Answer:
    return Answer(request, plan(request))


def _request(arguments: argparse.Namespace) -> PlanRequest:
    """The planner's question from the flags."""
    if arguments.model is None or arguments.accelerator is None:
        raise UsageError("--model and --accelerator are needed, or -f FILE; see --help")
    return PlanRequest(
        facts=_facts(arguments.model),
        accelerator=_profile(arguments.accelerator),
        kv_budget=_budget(arguments),
        gpus_per_node=arguments.gpus_per_node,
        max_nodes=arguments.nodes,
        tensor=arguments.tensor_parallel_size,
        pipeline=arguments.pipeline_parallel_size,
        weights=arguments.quantization,
        allowed=tuple(part.strip() for part in arguments.allowed.split(",") if part.strip()),
        floor=arguments.floor,
        kv_cache_dtype=arguments.kv_cache_dtype,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        memory_bytes=arguments.memory,
    )


def _budget(arguments: argparse.Namespace) -> KVBudget:
    if arguments.concurrent_sequences is not None:
        return KVBudget("sequences", arguments.concurrent_sequences)
    if arguments.kv_tokens is not None:
        return KVBudget("tokens", arguments.kv_tokens)
    if arguments.kv_memory is not None:
        return KVBudget("bytes", arguments.kv_memory)
    return KVBudget("percent", 100 if arguments.kv_memory_percent is None else arguments.kv_memory_percent)


def _facts(model: str) -> ModelFacts:
    """Facts from a path, of a well-known model, or from the hub.

    Raises:
        UsageError: none of these.
        FactsError: it is there, but not a model that is known; or the hub does not give it.
    """
    path = Path(model.removeprefix("file://"))
    if path.exists():
        return inspect_model(path)
    facts = known_model(model)
    if facts is not None:
        return facts
    if model.startswith(PREFIX):
        return _hub_facts(model)
    if "://" in model:
        raise UsageError(f"--model {model}: only hf:// addresses are known here; or pass a path on this machine")
    if model.count("/") != 1:
        raise UsageError(f"--model {model}: no such file or folder")
    raise UsageError(
        f"--model {model}: no such file or folder, and not one of the {len(known_model_names())} models of the "
        f"catalogue; {PREFIX}{model} asks the hub for it"
    )


def _hub_facts(model: str) -> ModelFacts:
    from forebay_operator.facts.hub import Hub, HubAddress, hub_facts  # its libraries are needed for this only

    address = HubAddress.parse(model)
    if address is None:
        raise UsageError(f"--model {model}: must be hf://org/name, hf://org/name@revision or hf://org/name/file.gguf")
    return hub_facts(address, Hub.from_environment())


def _profile(name: str) -> AcceleratorProfile:
    profile = accelerators().get(name)
    if profile is None:
        raise UsageError(f"accelerator {name!r} is not in the catalogue; it has: {', '.join(accelerators())}")
    return profile


def _compare(arguments: argparse.Namespace) -> int:
    """Plan for several accelerators; 0 when at least one fits."""
    names = [name.strip() for name in arguments.compare.split(",") if name.strip()]
    if not names:
        raise UsageError("--compare needs names of accelerators, separated by commas")
    arguments.accelerator = names[0]
    request = _request(arguments)
    answers = [(name, plan(replace(request, accelerator=_profile(name)))) for name in names]
    if arguments.output == "text":
        sys.stdout.write(comparison_text(request.facts, answers) + "\n")
    else:
        sys.stdout.write(_dumped({name: result.to_status() for name, result in answers}, arguments.output))
    return 0 if any(isinstance(result, Plan) for _, result in answers) else 1


def _from_file(arguments: argparse.Namespace) -> Answer:
    """Plan what an InferenceService asks for; AcceleratorProfiles in the same file override the catalogue."""
    from forebay_operator.cli.manifest import read_manifest  # pydantic and yaml are needed for this only

    defaults = parser().parse_args([])
    for name, value in vars(arguments).items():
        if name not in WITH_FILE and value != getattr(defaults, name):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} cannot be given with -f: {arguments.file} says it")
    try:
        manifest = read_manifest(arguments.file, arguments.accelerator)
    except ValueError as error:
        raise UsageError(str(error)) from None
    uri = manifest.model_uri
    model = arguments.model or published_name(uri)
    if model is None:
        raise UsageError(
            f"{arguments.file}: spec.model.uri {uri}: what lies there is not known here; pass --model with the "
            "path of the same model on this machine, its hf:// address, or the name of a well-known one"
        )
    facts = _facts(model)
    if arguments.model is None:
        sys.stderr.write(f"forebay plan: {uri} is taken for {model} as published; --model says otherwise\n")
    request = manifest.request(facts)
    if arguments.gpus_per_node is not None:
        request = replace(request, gpus_per_node=arguments.gpus_per_node)
    return _answer(request)


def _rendered(answer: Answer, output: str) -> str:
    if output != "text":
        return _dumped(answer.result.to_status(), output)
    if isinstance(answer.result, Plan):
        return plan_text(answer.request, answer.result) + "\n"
    return refusal_text(answer.request, answer.result) + "\n"


def _dumped(data: dict[str, Any], output: str) -> str:
    if output == "json":
        return json.dumps(data, indent=2) + "\n"
    import yaml  # for this output only

    return str(yaml.safe_dump(data, sort_keys=False, width=120))


def _accelerator_list() -> str:
    rows = [
        f"{name:<16} {profile.memory_bytes / 1e9:6.1f} GB  {profile.bandwidth_bytes_per_second // 10**9:>5} GB/s  "
        f"{', '.join(profile.native)}"
        for name, profile in accelerators().items()
    ]
    return "\n".join(rows) + "\n"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _positive_or_auto(text: str) -> int | str:
    return text if text == "auto" else _positive(text)


def _bytes(text: str) -> int:
    digits = text.rstrip("kMGTi")
    factor = _SUFFIXES.get(text[len(digits) :])
    if not digits.isdecimal() or int(digits) < 1 or factor is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write for instance 8Gi or 40G")
    return int(digits) * factor


if __name__ == "__main__":
    sys.exit(main())
