"""Fills a model with the weights of a checkpoint, one weight at a time, after everything was checked."""

from collections.abc import Callable

import torch

from forebay_server.errors import ExitCode, StartupError
from forebay_server.models.llama import LlamaForCausalLM
from forebay_server.models.registry import model_class
from forebay_server.weights.checkpoint import Checkpoint
from forebay_server.weights.gguf_header import corrupt

ProgressCallback = Callable[[int, int], None]
"""Called with (bytes done, bytes in total), of the files."""

_NOT_NEEDED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "attention.masked_bias")
"""Buffers that old checkpoints carry and that follow from the configuration."""


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    available_bytes: int,
    progress: ProgressCallback = lambda *_: None,
) -> LlamaForCausalLM:
    """Build the model of a checkpoint and fill it.

    Args:
        checkpoint: opened, so its files are whole.
        dtype: in which weights are held; they are converted one at a time.
        device: where the model goes.
        available_bytes: memory that is free on that device.
        progress: called before the first and after every weight.

    Raises:
        StartupError: 16 when a weight is missing, unexpected or of the wrong shape; 13 when the weights do not fit; 2
            when the architecture is not supported.
    """
    build = model_class(checkpoint.config)
    default_dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.device("meta"):
            model = build(checkpoint.config)
    finally:
        torch.set_default_dtype(default_dtype)
    check_shapes(checkpoint, {name: tuple(slot.shape) for name, slot in model.slots().items()})
    need_bytes = weight_bytes(model)
    if need_bytes > available_bytes:
        raise StartupError(
            ExitCode.WEIGHTS_DO_NOT_FIT,
            "WeightsDoNotFit",
            f"{checkpoint.path}: the weights need {need_bytes:,} bytes as {dtype}, {available_bytes:,} bytes are free",
            need_bytes=need_bytes,
            have_bytes=available_bytes,
            suggestion="give the pod more memory, or use --dtype bfloat16 or a smaller model",
        )
    model.to_empty(device=device)
    model.requires_grad_(False)
    _fill(model, checkpoint, progress)
    return model.eval()


def check_shapes(checkpoint: Checkpoint, wanted: dict[str, tuple[int, ...]]) -> None:
    """Compare the checkpoint with what the model needs, by the headers alone.

    Raises:
        StartupError: 16, naming the first weight that is missing, unexpected or of the wrong shape.
    """
    shapes = {name: shape for name, shape in checkpoint.shapes.items() if not _is_ignored(name, wanted)}
    for name, shape in wanted.items():
        if name not in shapes:
            raise corrupt(checkpoint.path, f"tensor {name} is missing")
        if shapes[name] != shape:
            raise corrupt(checkpoint.path, f"tensor {name} has the shape {shapes[name]}; the model needs {shape}")
    unexpected = sorted(shapes.keys() - wanted.keys())
    if unexpected:
        raise corrupt(
            checkpoint.path, f"tensor {unexpected[0]} (of {len(unexpected)}) has no place in this architecture"
        )


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes that the parameters take."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def _fill(model: LlamaForCausalLM, checkpoint: Checkpoint, progress: ProgressCallback) -> None:
    slots = model.slots()
    bytes_done = 0
    progress(0, checkpoint.total_bytes)
    for name, weight, num_bytes in checkpoint.tensors():
        if name in slots:
            slots[name].copy_(weight)
        bytes_done += num_bytes
        progress(bytes_done, checkpoint.total_bytes)


def _is_ignored(name: str, wanted: dict[str, tuple[int, ...]]) -> bool:
    """Whether a weight may be skipped: derived buffers, and the copy of a tied head."""
    return name.endswith(_NOT_NEEDED) or (name == "lm_head.weight" and name not in wanted)
