"""`forebay eval`: hold a candidate's next-token distributions against the baseline's; exit 0 pass, 1 fail."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from forebay_server.config import Dtype, EngineConfig, KVCacheDtype, Quantization
from forebay_server.errors import ForebayError, StartupError

if TYPE_CHECKING:
    from forebay_server.evaluation.comparison import PromptComparison

_DTYPE_BY_NAME: dict[str, Dtype] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CACHE_CHUNK_TOKENS = 16
"""With a quantized KV cache a text is read in parts of so many tokens: what came before is then read from the cache."""
_LONGEST_TEXT = 2048
_EXAMPLES = """
examples:
  forebay eval --model ./SmolLM2-135M-Instruct --candidate int8
  forebay eval --model ./SmolLM2-135M-Instruct --candidate int4 --prompts mine.jsonl -o json --png int4.png
  forebay eval --model ./model --candidate int4 --quantization-group-size 128 --quantization-exclude down_proj
  forebay eval --model ./model --candidate bf16 --kv-cache-dtype int8
  forebay eval --model ./model --candidate auto --candidate-model ./model-awq

Each prompt is continued greedily by the baseline; then both models read the same tokens, and their distributions for
every next token are compared. A line of the prompt file: a JSON string, or an object with `prompt`, `messages` or
`prompt_token_ids`.

exit codes: 0 every threshold holds; 1 one does not; 2 bad command line or prompt file; others as of forebay serve
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """How one of the two models is loaded."""

    name: str
    dtype: Dtype
    quantization: Quantization


def variant(name: str) -> Variant:
    """A number format (bf16, fp16, fp32) or a value of --quantization, then computed in bfloat16.

    Raises:
        argparse.ArgumentTypeError: the name is neither.
    """
    if name in _DTYPE_BY_NAME:
        return Variant(name, _DTYPE_BY_NAME[name], "none")
    for value in get_args(Quantization):
        if name == value != "none":
            return Variant(name, "bfloat16", value)
    possible = [*_DTYPE_BY_NAME, *(value for value in get_args(Quantization) if value != "none")]
    raise argparse.ArgumentTypeError(f"{name!r} is none of: {', '.join(possible)}")


def main(argv: Sequence[str]) -> int:
    """Run `forebay eval` and return its exit code."""
    options = _parser().parse_args(argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the engine process sets it, before torch is imported
    try:
        return _evaluate(options)
    except StartupError as error:
        sys.stderr.write(f"forebay eval: {error.reason}: {error.message}\n")
        return error.exit_code
    except ForebayError as error:
        sys.stderr.write(f"forebay eval: {error}\n")
        return 2


def _evaluate(options: argparse.Namespace) -> int:
    from forebay_server.evaluation.prompts import DEFAULT_FILE, PromptTokenizer, read_prompts
    from forebay_server.evaluation.report import Evaluation, as_json, as_text
    from forebay_server.evaluation.summary import Thresholds, judge, summarize
    from forebay_server.text.model_path import locate_model
    from forebay_server.text.model_text import load_model_text

    text = load_model_text(locate_model(options.model))
    chat = text.chat_template
    tokenizer = PromptTokenizer(
        text.tokenizer.encode, None if chat is None else lambda messages: chat.prompt_token_ids(messages)
    )
    prompts = read_prompts(options.prompts, tokenizer, options.max_prompt_tokens)
    compared = _compare(options, prompts)
    thresholds = Thresholds(options.max_kl, options.min_top1, options.max_perplexity_increase)
    summary = summarize(compared, options.resamples, options.seed)
    by = f" by {options.quantization_group_size}" if options.candidate.quantization == "int4" else ""
    without = f" without {' '.join(options.quantization_exclude)}" if options.quantization_exclude else ""
    cache = "" if options.kv_cache_dtype == "auto" else f", KV cache {options.kv_cache_dtype}"
    other = "" if options.candidate_model is None else f" ({Path(options.candidate_model).name})"
    evaluation = Evaluation(
        model=Path(options.model).name,
        baseline=options.baseline.name,
        candidate=options.candidate.name + by + without + other + cache,
        prompts=options.prompts or DEFAULT_FILE,
        summary=summary,
        checks=judge(summary, thresholds),
    )
    if options.png is not None:
        from forebay_server.evaluation.picture import draw

        draw(evaluation, compared, thresholds, Path(options.png))
    if options.output == "json":
        sys.stdout.write(json.dumps(as_json(evaluation), indent=2) + "\n")
    else:
        sys.stdout.write(as_text(evaluation) + "\n")
    return 0 if evaluation.passed else 1


def _compare(options: argparse.Namespace, prompts: list[list[int]]) -> list["PromptComparison"]:
    """Load both models and compare them text by text; logits live for one text only."""
    from tqdm import tqdm

    from forebay_server.engine.device import set_threads
    from forebay_server.evaluation.comparison import compare_logits
    from forebay_server.evaluation.scorer import Scorer

    set_threads()
    longest = max(map(len, prompts)) + options.continuation_tokens
    baseline = Scorer(_config(options, options.model, options.baseline, longest, "auto"))
    candidate_model = options.candidate_model or options.model
    config = _config(options, candidate_model, options.candidate, longest, options.kv_cache_dtype)
    candidate = Scorer(
        replace(
            config,
            quantization_group_size=options.quantization_group_size,
            quantization_exclude=tuple(options.quantization_exclude),
        )
    )
    answers: list[list[int]] = [[] for _ in prompts]
    if options.continuation_tokens:
        answers = baseline.continuations(prompts, options.continuation_tokens)
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    compared = []
    for token_ids in tqdm([text for text in texts if len(text) > 1], desc="scoring", unit="text", disable=None):
        compared.append(compare_logits(baseline.logits(token_ids), candidate.logits(token_ids), token_ids[1:]))
    return compared


def _config(
    options: argparse.Namespace, model: str, how: Variant, longest: int, kv_cache_dtype: KVCacheDtype
) -> EngineConfig:
    step_tokens = 512 if kv_cache_dtype == "auto" else CACHE_CHUNK_TOKENS
    return EngineConfig(
        model=model,
        device=options.device,
        dtype=how.dtype,
        quantization=how.quantization,
        kv_cache_dtype=kv_cache_dtype,
        kv_cache_tokens=max(8 * (longest + 32), 4096),
        max_num_seqs=32,
        max_num_batched_tokens=step_tokens,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay eval",
        description="Tell how much quantization changes a model: perplexity, KL divergence, greedy agreement.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", required=True, help="a GGUF file or a folder, as for forebay serve")
    add("--baseline", type=variant, default=variant("bf16"), metavar="FORM", help="bf16 (default), fp16 or fp32")
    add(
        "--candidate",
        type=variant,
        required=True,
        metavar="FORM",
        help="a value of --quantization, or fp16, fp32, bf16",
    )
    add("--candidate-model", help="another checkpoint of the same model, quantized offline (default: --model)")
    add("--kv-cache-dtype", choices=get_args(KVCacheDtype), default="auto", help="of the candidate (default: auto)")
    add("--quantization-group-size", type=int, choices=(32, 64, 128), default=32, help="of int4 (default: 32)")
    add("--quantization-exclude", nargs="+", default=[], metavar="LAYER", help="layers that stay in dtype")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to compute (default: auto)")
    add("--prompts", metavar="FILE", help="a .jsonl file (default: 119 short ones of the package)")
    add("--max-prompt-tokens", type=_whole(1, _LONGEST_TEXT), default=512, help="longer ones are cut (default: 512)")
    add(
        "--continuation-tokens",
        type=_whole(0, _LONGEST_TEXT),
        default=32,
        help="that the baseline adds to each prompt before both are compared; 0: the prompts alone (default: 32)",
    )
    add("--max-kl", type=_positive, default=0.02, help="nats a token, mean (default: 0.02)")
    add("--min-top1", type=_positive, default=0.93, help="share of equal greedy choices (default: 0.93)")
    add("--max-perplexity-increase", type=_positive, default=0.02, help="0.02 is 2 %% (default: 0.02)")
    add("--resamples", type=_whole(1, 100_000), default=1000, help="draws of the bootstrap (default: 1000)")
    add("--seed", type=_whole(0, 2**32), default=0, help="of the bootstrap (default: 0)")
    add("-o", "--output", choices=["text", "json"], default="text", help="what goes to stdout (default: text)")
    add("--png", metavar="FILE", help="write a picture there")
    return parser


def _whole(lowest: int, highest: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {lowest} to {highest}")
        return int(text)

    return convert


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number, 0 or more")
    return value
