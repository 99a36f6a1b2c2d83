"""Which form each weight gets: pure decisions from what the checkpoint holds, the flags and the device."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay_server.config import Quantization
from forebay_server.layers.weight_forms import PLAIN, FormatKind, WeightFormat, can_be_int4

HEAD = "lm_head"
TABLE = "model.embed_tokens"

HEAD_GROUP = 32
"""in_features that share a scale in an int8 head on CPUs: with the coarser scales of whole rows, logits that lie close
change places, and the head is a small part of most models."""


@dataclass(frozen=True, slots=True)
class QuantizationOptions:
    """What `--quantization` and its companions ask for on one device."""

    mode: Quantization = "none"
    group_size: int = 32
    """in_features that share a scale in int4; a layer whose rows it does not divide takes a smaller one."""
    exclude: tuple[str, ...] = ()
    """Layers that stay in dtype when weights are quantized while loading: names, last parts of names, or `re:`."""
    kept_kinds: frozenset[FormatKind] = frozenset()
    """Forms of quantized checkpoints that the device runs well: `auto` keeps them."""
    always_quantizes_input: bool = False
    """Whether the device multiplies quantized weights with eight-bit inputs only (CPUs)."""


DEQUANTIZED = QuantizationOptions()
"""Everything in dtype."""


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """Which weight is asked about."""

    name: str
    """As the checkpoint calls the layer, without `.weight`."""
    in_features: int
    is_table: bool = False
    """Rows are looked up."""
    is_head: bool = False
    """It makes the logits; a table too where the head is tied."""
    is_quantizable: bool = True
    """See `Linear.is_quantizable`."""


def target_format(place: WeightPlace, stored: WeightFormat, options: QuantizationOptions) -> WeightFormat:
    """The form in which a weight is held.

    Args:
        place: of the weight.
        stored: its form in the checkpoint.
        options: the flags.
    """
    if options.mode == "none":
        return PLAIN
    if options.mode == "auto":
        if stored.kind not in options.kept_kinds:
            return PLAIN
        return replace(stored, quantizes_input=stored.quantizes_input or options.always_quantizes_input)
    is_lookup = place.is_table and not place.is_head
    if is_lookup or not place.is_quantizable or is_excluded(place, options.exclude):
        return PLAIN
    return _quantized(place, stored, options)


def _quantized(place: WeightPlace, stored: WeightFormat, options: QuantizationOptions) -> WeightFormat:
    """For the modes that convert what they find."""
    if options.mode == "fp8":
        return stored if stored.kind == "fp8" else WeightFormat("fp8", quantizes_input=True)
    if options.mode == "int4" and not place.is_head:
        quantizes_input = options.always_quantizes_input
        if stored.kind == "int4":
            return replace(stored, quantizes_input=quantizes_input)
        for group_size in (options.group_size, 64, 32):
            if group_size <= options.group_size and can_be_int4(place.in_features, group_size):
                return WeightFormat("int4", group_size, scale_bytes=2, quantizes_input=quantizes_input)
    # the head of an int4 model has eight bits: four cost more there than anywhere else
    quantizes_input = options.mode == "int8" or (options.mode == "int4" and options.always_quantizes_input)
    if stored.kind == "int8":
        return replace(stored, quantizes_input=quantizes_input)
    by_group = place.is_head and quantizes_input and options.always_quantizes_input
    group_size = HEAD_GROUP if by_group and place.in_features % HEAD_GROUP == 0 else 0
    return WeightFormat("int8", group_size, quantizes_input=quantizes_input)


def is_excluded(place: WeightPlace, exclude: Sequence[str]) -> bool:
    """Whether a layer is one of those named; a tied head goes by both of its names."""
    names = [place.name]
    if place.is_table and place.is_head:
        names.append(HEAD)
    return any(matches(name, pattern) for name in names for pattern in exclude)


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern means a layer: its whole name, the last parts of it, or `re:` and a regular expression.

    Regular expressions are matched from the start of the name, as compressed-tensors does.
    """
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    return name == pattern or name.endswith("." + pattern)
