"""Fills a model with the weights of a checkpoint, one weight at a time, after everything was checked."""

import ctypes
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from forebay_server.errors import ExitCode, StartupError
from forebay_server.layers.embedding import Embedding
from forebay_server.layers.linear import Linear, Slots, TensorSlot, WeightSlot
from forebay_server.layers.weight_forms import (
    PLAIN,
    LinearWeight,
    WeightFormat,
    copied,
    dequantize,
    num_bytes,
    to_device,
)
from forebay_server.models.decoder import CausalLM
from forebay_server.models.model_config import ModelConfig
from forebay_server.models.registry import model_class
from forebay_server.parallel.group import ONE_RANK, RankGroup
from forebay_server.parallel.stages import WHOLE, Stage
from forebay_server.weights.checkpoint import Checkpoint
from forebay_server.weights.convert import convert, format_of, squared_error
from forebay_server.weights.gguf_header import corrupt
from forebay_server.weights.quantization import DEQUANTIZED, HEAD, QuantizationOptions, WeightPlace, target_format

logger = logging.getLogger(__name__)

ProgressCallback = Callable[[int, int], None]
"""Called with (bytes done, bytes in total), of the files."""

_Read = tuple[str, LinearWeight, int]
"""See `Checkpoint.tensors`."""
_NOT_NEEDED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "attention.masked_bias")
"""Buffers that old checkpoints carry and that follow from the configuration."""


@dataclass(slots=True)
class Conversion:
    """What became of the weights that the checkpoint holds in one form and the model in another."""

    stored: str
    """As in the checkpoint, such as `bfloat16` or `Q4_K`."""
    held: str
    """As `WeightFormat` names it."""
    num_weights: int = 0
    num_bytes: int = 0
    """In memory."""
    squared_difference: float = 0.0
    squared_size: float = 0.0

    @property
    def relative_error(self) -> float:
        """Root of the squared difference over the squared size, of a sample of rows; 0 where nothing was rounded."""
        return (self.squared_difference / self.squared_size) ** 0.5 if self.squared_size else 0.0


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """A model with its weights, and how they came to be."""

    model: CausalLM
    conversions: list[Conversion] = field(default_factory=list)


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    available_bytes: int,
    progress: ProgressCallback = lambda *_: None,
    options: QuantizationOptions = DEQUANTIZED,
    group: RankGroup = ONE_RANK,
    stage: Stage = WHOLE,
) -> LoadedWeights:
    """Build the model of a checkpoint, or one rank's share of it, and fill it.

    Args:
        checkpoint: opened, so its files are whole.
        dtype: in which weights are held that are not quantized; they are converted one at a time.
        device: where the model goes.
        available_bytes: memory that is free on that device.
        progress: called before the first and after every weight.
        options: which weights are quantized, and how.
        group: the ranks that share the layers.
        stage: which of the layers.

    Raises:
        StartupError: 16 when a weight is missing, unexpected or of the wrong shape; 13 when the weights do not fit; 2
            when the architecture is not supported.
    """
    whole = _without_memory(checkpoint.config, dtype, group)
    check_shapes(checkpoint, {name: tuple(slot.shape) for name, slot in whole.slots().items()})
    model = whole if stage == WHOLE else _without_memory(checkpoint.config, dtype, group, stage)
    slots = model.slots()
    formats = target_formats(checkpoint, slots, options)
    need_bytes = sum(formats.get(name, PLAIN).num_bytes(_held_shape(slot), dtype) for name, slot in slots.items())
    if need_bytes > available_bytes:
        raise StartupError(
            ExitCode.WEIGHTS_DO_NOT_FIT,
            "WeightsDoNotFit",
            f"{checkpoint.path}: the weights need {need_bytes:,} bytes as {dtype}, {available_bytes:,} bytes are free",
            need_bytes=need_bytes,
            have_bytes=available_bytes,
            suggestion="give the pod more memory, or use --quantization int8, --dtype bfloat16 or a smaller model",
        )
    _allocate(model, device)
    model.requires_grad_(False)
    with _one_thread():
        conversions = _fill(model.slots(), checkpoint, formats, dtype, device, progress)
    give_memory_back()
    for conversion in conversions:
        logger.info(
            "%d weights from %s to %s: %s bytes, relative error %.2g",
            conversion.num_weights,
            conversion.stored,
            conversion.held,
            f"{conversion.num_bytes:,}",
            conversion.relative_error,
        )
    return LoadedWeights(model.eval(), conversions)


def _without_memory(config: ModelConfig, dtype: torch.dtype, group: RankGroup, stage: Stage = WHOLE) -> CausalLM:
    """The model, or a rank's share of it, whose parameters have sizes only."""
    default_dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.device("meta"):
            return model_class(config)(config, group, stage)
    finally:
        torch.set_default_dtype(default_dtype)


def _allocate(model: torch.nn.Module, device: torch.device) -> None:
    """Give every parameter memory. `Module.to_empty` does it, too, and imports sympy for it, which takes 0.7 s."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            memory = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            setattr(module, name, torch.nn.Parameter(memory, requires_grad=False))


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


def target_formats(checkpoint: Checkpoint, slots: Slots, options: QuantizationOptions) -> dict[str, WeightFormat]:
    """The form of every weight that has a choice, by name."""
    formats = {}
    for name, slot in slots.items():
        if isinstance(slot, WeightSlot):
            is_table = isinstance(slot.layer, Embedding)
            layer = name.removesuffix(".weight")
            is_head = layer == HEAD or (is_table and checkpoint.config.tie_word_embeddings)
            place = WeightPlace(layer, slot.shape[1], is_table, is_head, slot.layer.is_quantizable)
            suitable = target_format(place, checkpoint.formats.get(name, PLAIN), options)
            # groups that are not in the order of the columns (act-order) are not whole on a rank with some columns
            formats[name] = PLAIN if suitable.is_permuted and slot.has_part_of_columns else suitable
    return formats


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes that the weights take, packed as they are, with scales."""
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    layers = (module for module in model.modules() if isinstance(module, Linear))
    return parameters + sum(num_bytes(weight) for layer in layers for weight in layer.weights)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch work in this thread alone: parts are small, and on a busy machine its threads wait for one another.

    SmolLM2-135M to int8 with a load of 20 on two cores: 23 s alone (3 s of computing), 300 s with two threads.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _fill(
    slots: Slots,
    checkpoint: Checkpoint,
    formats: dict[str, WeightFormat],
    dtype: torch.dtype,
    device: torch.device,
    progress: ProgressCallback,
) -> list[Conversion]:
    """Read, convert and place one weight after another."""
    conversions: dict[tuple[str, str], Conversion] = {}
    bytes_done = 0
    progress(0, checkpoint.total_bytes)
    for name, weight, file_bytes in _read_ahead(checkpoint.tensors(slots.keys())):
        slot = slots.get(name)
        if isinstance(slot, WeightSlot):
            target = formats[name]
            is_cut = slot.cut is not None and target.kind == "plain" and isinstance(weight, torch.Tensor)
            if is_cut:
                weight = slot.part_of(weight)  # a copy: of a file that is mapped, a rank reads its own pages only
            held = convert(weight, target, dtype)
            _note(conversions, checkpoint.stored_as(name), target, weight, held)
            if held is weight and not is_cut:
                held = copied(weight)  # it may be a view of the file
            try:
                held = held if is_cut else slot.part_of(held)  # scales are those of whole rows and groups
                slot.fill(to_device(held, device), quantizes_input=target.quantizes_input)
            except ValueError as error:
                raise _cannot_be_cut(name, error) from error
        elif slot is not None:
            slot.copy_(weight if isinstance(weight, torch.Tensor) else dequantize(weight))
        bytes_done += file_bytes
        progress(bytes_done, checkpoint.total_bytes)
    progress(checkpoint.total_bytes, checkpoint.total_bytes)  # with what other stages read
    return list(conversions.values())


def _read_ahead(weights: Iterator[_Read]) -> Iterator[_Read]:
    """The same, each weight read and decoded by another thread while the one before it is converted."""
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(next, weights, None)
        while (weight := reading.result()) is not None:
            reading = reader.submit(next, weights, None)
            yield weight


def _note(
    conversions: dict[tuple[str, str], Conversion],
    stored: str,
    target: WeightFormat,
    before: LinearWeight,
    after: LinearWeight,
) -> None:
    if target.kind == "plain" and format_of(before).kind == "plain":
        return
    conversion = conversions.setdefault((stored, str(target)), Conversion(stored, str(target)))
    conversion.num_weights += 1
    conversion.num_bytes += num_bytes(after)
    if after is not before:
        difference, size = squared_error(before, after)
        conversion.squared_difference += difference
        conversion.squared_size += size


def _held_shape(slot: torch.Tensor | TensorSlot | WeightSlot) -> tuple[int, ...]:
    return tuple(slot.shape) if isinstance(slot, torch.Tensor) else slot.held_shape


def _cannot_be_cut(name: str, error: ValueError) -> StartupError:
    return StartupError(
        ExitCode.BAD_CONFIGURATION,
        "BadConfiguration",
        f"{name} cannot be divided between the ranks: {error}",
        suggestion="use a smaller --tensor-parallel-size, or a checkpoint with smaller groups",
    )


def give_memory_back() -> None:
    """Return what converting has used to the system; the C library would keep it for later."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _is_ignored(name: str, wanted: dict[str, tuple[int, ...]]) -> bool:
    """Whether a weight may be skipped: derived buffers, and the copy of a tied head."""
    return name.endswith(_NOT_NEEDED) or (name == "lm_head.weight" and name not in wanted)
