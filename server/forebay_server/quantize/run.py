"""One run of `forebay quantize`: a model goes in layer by layer, a checkpoint comes out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import torch

from forebay_server.layers.linear import Linear, TensorSlot, WeightSlot
from forebay_server.models.decoder import CausalLM, DecoderLayer
from forebay_server.quantize.checkpoint_writer import CheckpointWriter
from forebay_server.quantize.folding import plain
from forebay_server.quantize.kept_run import KeptRun, Progress
from forebay_server.quantize.layer_walk import InputStatistics, LayerWalk, inputs_name
from forebay_server.quantize.method import Method

GROUP_SIZES = (128, 64, 32)


def quantize_model(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    method: Method,
    writer: CheckpointWriter,
    progress: Callable[[int, int], None] = lambda *_: None,
    kept: KeptRun | None = None,
) -> float:
    """Quantize every linear layer but the LM head, and write everything.

    Args:
        model: in float32; its layers hold the quantized weights' meaning afterwards.
        prompts: token ids for calibration; empty where the method needs none.
        method: how.
        writer: takes the tensors.
        progress: called with (layers done, layers in total).
        kept: where to keep every layer as soon as it is done, and to go on from; None: nowhere.

    Returns:
        The relative error of the quantized weights: root of the squared difference over the squared size.
    """
    layers = list(cast(Iterable[DecoderLayer], model.layers))
    walk = LayerWalk(model, prompts)
    difference = size = 0.0
    num_done = 0
    before = None if kept is None else kept.read()
    if before is not None:
        done, state = before
        num_done, difference, size = done.num_layers, done.difference, done.size
        walk.go_on(state)
        writer.go_on(done.weight_map, done.total_bytes)
    progress(num_done, len(layers))
    for index, layer in enumerate(layers[num_done:], num_done):
        if method.prepares:
            method.prepare(layer, walk.statistics(index, layer, of_experts=False))
        statistics = walk.statistics(index, layer) if method.corrects else {}
        errors = _quantize_layer(f"model.layers.{index}", layer, statistics, method, writer)
        difference, size = difference + errors[0], size + errors[1]
        walk.advance(index, layer)
        if kept is not None:
            writer.flush()
            kept.write(Progress(index + 1, difference, size, *writer.written), walk.state())
        progress(index + 1, len(layers))
    outside = {name: slot for name, slot in model.slots().items() if not name.startswith("model.layers.")}
    for name, slot in outside.items():
        tensor = plain(slot.layer) if isinstance(slot, WeightSlot) else slot
        writer.add({name: cast(torch.Tensor, tensor).bfloat16()})
    return float((difference / size) ** 0.5) if size else 0.0


def _quantize_layer(
    prefix: str,
    layer: DecoderLayer,
    statistics: Mapping[str, InputStatistics],
    method: Method,
    writer: CheckpointWriter,
) -> tuple[float, float]:
    """Write a layer and leave the quantized weights' meaning in it; (squared difference, squared size).

    Routers of experts stay as they are: they decide much and are small. An expert that no prompt chose is just rounded.
    """
    names = {id(module): name for name, module in layer.named_modules() if isinstance(module, Linear)}
    meanings: dict[int, list[torch.Tensor]] = {}
    linears: dict[int, Linear] = {}
    difference = size = 0.0
    for name, slot in layer.slots(prefix).items():
        if isinstance(slot, TensorSlot):
            writer.add({name: slot.target.bfloat16()})
        elif isinstance(slot, torch.Tensor):
            writer.add({name: slot.bfloat16()})
        elif not slot.layer.is_quantizable:
            writer.add({name: plain(slot.layer).bfloat16()})
        else:
            linear = slot.layer
            start = sum(len(rows) for rows in meanings.get(id(linear), []))
            weight = plain(linear)[start : start + slot.shape[0]]
            inputs = statistics.get(inputs_name(linear, names[id(linear)], slot.part))
            if method.corrects and inputs is None:
                inputs = InputStatistics.empty(linear.in_features)
            matrix = method.quantize(weight, inputs)
            layer_name = name.removesuffix(".weight")
            writer.add({f"{layer_name}.{part}": tensor for part, tensor in matrix.parts.items()})
            meanings.setdefault(id(linear), []).append(matrix.meaning)
            linears[id(linear)] = linear
            difference += float((matrix.meaning - weight).square().sum())
            size += float(weight.square().sum())
    for key, linear in linears.items():
        linear.weights = [torch.cat(meanings[key])]
    return difference, size


def routers_of(model: CausalLM) -> list[str]:
    """The names of the linear layers that are not quantized, without the LM head."""
    return [
        name.removesuffix(".weight")
        for name, slot in model.slots().items()
        if isinstance(slot, WeightSlot) and not slot.layer.is_quantizable
    ]


def common_group_size(model: CausalLM) -> int | None:
    """The largest group that divides the inputs of every linear layer; None: there is none."""
    sizes = {module.in_features for layer in model.layers for module in layer.modules() if isinstance(module, Linear)}
    return next((group for group in GROUP_SIZES if all(size % group == 0 for size in sizes)), None)
