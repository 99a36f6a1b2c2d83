"""`forebay quantize`: a checkpoint in, a compressed-tensors checkpoint out, which this server and vLLM load."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from forebay_server.errors import ExitCode, ForebayError, StartupError
from forebay_server.quantize.output_folder import check_space, check_target, output_bytes, staged

if TYPE_CHECKING:
    from forebay_server.models.decoder import CausalLM
    from forebay_server.quantize.method import Method

METHODS = ("int8", "smoothquant", "gptq", "awq", "fp8")
CALIBRATED = ("smoothquant", "gptq", "awq")
_BYTES_PER_WEIGHT = {"int8": 1.01, "smoothquant": 1.01, "fp8": 1.01, "gptq": 0.57, "awq": 0.59}
"""At most, scales included."""
_EXAMPLES = """
methods:
  int8         weights and inputs in eight bits (W8A8), nothing to calibrate
  smoothquant  int8 after inputs with large channels handed some of their size to the weights
  gptq         weights in four bits; errors are made good column by column
  awq          weights in four bits; inputs that matter get finer ones
  fp8          weights and inputs in FP8 (e4m3), nothing to calibrate

examples:
  forebay quantize --model ./Llama-3.2-1B-Instruct --method int8 --output ./Llama-3.2-1B-int8
  forebay quantize --model ./model.gguf --method awq --output ./model-awq
  forebay quantize --model ./model --method gptq --calibration prompts.jsonl --output ./model-gptq
  forebay quantize --model ./large --method gptq --output ./large-gptq --resume    # again after it ended early
  forebay eval --model ./model --candidate-model ./model-gptq --candidate auto

A line of the calibration file: a JSON string, or an object with `prompt`, `messages` or `prompt_token_ids`; a hundred
prompts like those that will be served are enough. The LM head and the embeddings stay as they are, in bfloat16. The
model is held in float32 meanwhile: 4 bytes a parameter. The output folder appears when all is written; a run that is
interrupted leaves nothing, with --resume the layers that are done. GGUF files can be read, too (Llama, Qwen 2 and 3):
what their own quantization cost stays.

exit codes: 0 written; 2 bad command line, prompts or model; others as of forebay serve
"""


def main(argv: Sequence[str]) -> int:
    """Run `forebay quantize` and return its exit code."""
    options = _parser().parse_args(argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        return _quantize(options)
    except StartupError as error:
        sys.stderr.write(f"forebay quantize: {error.reason}: {error.message}\n")
        return error.exit_code
    except ForebayError as error:
        sys.stderr.write(f"forebay quantize: {error}\n")
        return 2
    except KeyboardInterrupt:
        left = "layers that are done are kept; the same command goes on" if options.resume else "nothing was written"
        sys.stderr.write(f"\nforebay quantize: interrupted; {left}\n")
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, _: FrameType | None) -> NoReturn:
    """End in order, so that nothing half written stays."""
    sys.exit(128 + number)


def _quantize(options: argparse.Namespace) -> int:
    source, target = Path(options.model), Path(options.output)
    check_target(target, resumes=options.resume)
    import torch

    from forebay_server.engine.device import available_bytes
    from forebay_server.quantize.checkpoint_writer import CheckpointWriter, quantization_config
    from forebay_server.quantize.kept_run import KeptRun, fingerprint_of
    from forebay_server.quantize.model_files import config_values, write_text_files
    from forebay_server.quantize.run import quantize_model, routers_of
    from forebay_server.weights.checkpoint import open_checkpoint
    from forebay_server.weights.loader import load_model

    checkpoint = open_checkpoint(source)
    config = config_values(checkpoint)
    check_space(target, output_bytes(checkpoint.shapes, _BYTES_PER_WEIGHT[options.method]))
    prompts = _prompts(options) if options.method in CALIBRATED else []
    device = torch.device("cpu")
    model = load_model(checkpoint, torch.float32, device, available_bytes(device), _progress("loading", "bytes")).model
    method = _method(options, model)
    with staged(target) as folder:
        writer = CheckpointWriter(folder)
        kept = KeptRun(folder, fingerprint_of(checkpoint, method, prompts)) if options.resume else None
        error = quantize_model(model, prompts, method, writer, _progress(options.method, "layers"), kept)
        num_bytes = writer.finish(
            config | {"quantization_config": quantization_config(method.group(), method.stored_as, routers_of(model))}
        )
        write_text_files(checkpoint.path, folder)
        if kept is not None:
            kept.remove()
    sys.stdout.write(f"{target}: {num_bytes:,} bytes; relative error of the weights {error:.4f}\n")
    return 0


def _method(options: argparse.Namespace, model: "CausalLM") -> "Method":
    from forebay_server.quantize.awq import Awq
    from forebay_server.quantize.fp8 import Fp8
    from forebay_server.quantize.gptq import Gptq
    from forebay_server.quantize.int8 import Int8
    from forebay_server.quantize.run import common_group_size
    from forebay_server.quantize.smoothquant import SmoothQuant

    if options.method in ("int8", "fp8", "smoothquant"):
        return {"int8": Int8, "fp8": Fp8, "smoothquant": SmoothQuant}[options.method]()
    possible = common_group_size(model)
    group_size = options.group_size or possible
    if possible is None or group_size is None or possible % group_size:
        raise _bad(f"--group-size {group_size}: does not divide the inputs of every layer; possible: {possible}")
    return Gptq(group_size) if options.method == "gptq" else Awq(group_size)


def _prompts(options: argparse.Namespace) -> list[list[int]]:
    from forebay_server.evaluation.prompts import PromptTokenizer, read_prompts
    from forebay_server.text.model_path import locate_model
    from forebay_server.text.model_text import load_model_text

    text = load_model_text(locate_model(options.model))
    chat = text.chat_template
    encode_chat = None if chat is None else lambda messages: chat.prompt_token_ids(messages)
    tokenizer = PromptTokenizer(text.tokenizer.encode, encode_chat)
    return read_prompts(options.calibration, tokenizer, options.max_prompt_tokens)


def _progress(what: str, unit: str) -> Any:
    """A function that keeps one line of stderr up to date; without a terminal it writes every tenth part."""
    told = -1

    def tell(done: int, total: int) -> None:
        nonlocal told
        percent = 100 * done // max(total, 1)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{what}: {done:,} of {total:,} {unit} ({percent} %)" + "\n" * (done == total))
        elif percent // 10 != told // 10:
            sys.stderr.write(f"{what}: {done:,} of {total:,} {unit} ({percent} %)\n")
        told = percent

    return tell


def _bad(message: str) -> StartupError:
    return StartupError(ExitCode.BAD_CONFIGURATION, "BadConfiguration", message)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay quantize",
        description="Quantize a model offline and write it as a compressed-tensors checkpoint.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", required=True, help="a folder with config.json and safetensors, or a GGUF file")
    parser.add_argument("--method", required=True, choices=METHODS, help="see below")
    parser.add_argument("--output", required=True, metavar="DIR", help="a folder that does not exist yet")
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="a .jsonl file of prompts, for smoothquant, gptq and awq (default: 119 short ones of the package)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep each layer that is done if the run ends early, and go on from there when it is started again",
    )
    parser.add_argument("--max-prompt-tokens", type=int, default=512, help="longer ones are cut (default: 512)")
    parser.add_argument(
        "--group-size",
        type=int,
        choices=(32, 64, 128),
        help="inputs that share a scale, for gptq and awq (default: the largest that divides every layer)",
    )
    return parser
