"""The rotary settings of `config.json` and of GGUF metadata, which have been written in many ways over the years."""

import math
from typing import Any

from forebay_server.models.model_config import Fields, RopeScaling, unsupported

HUGGING_FACE_KINDS = "default, linear, dynamic, yarn, longrope and llama3"


def rope_fields(fields: Fields) -> Fields:
    """One mapping from the ways in which `config.json` tells the rotary settings (the newest is `rope_parameters`).

    Where the settings differ between layers, these are the ones of the layers that see everything.
    """
    values: dict[str, Any] = {
        key: fields.values[key]
        for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
        if fields.has(key)
    }
    for key in ("rope_scaling", "rope_parameters"):
        part = fields.values.get(key)
        if part is not None:
            if not isinstance(part, dict):
                raise fields.wrong(key, "an object")
            values |= {name: value for name, value in part.get("full_attention", part).items() if value is not None}
    return Fields(values, fields.source)


def local_rope_theta(fields: Fields) -> float | None:
    """The rotary base of the layers with a sliding window, where `config.json` tells one of their own."""
    part = fields.values.get("rope_parameters")
    local = part.get("sliding_attention") if isinstance(part, dict) else None
    if isinstance(local, dict):
        kind = local.get("rope_type", "default")
        if kind != "default":
            raise unsupported(f"{fields.source}: rope scaling {kind!r} of sliding layers is not supported; default is")
        return Fields(local, fields.source).number("rope_theta")
    return fields.optional_number("rope_local_base_freq")


def rope_scaling(rope: Fields, rotary_dim: int, max_position: int) -> RopeScaling | None:
    """The scaling that `rope_fields` tell.

    Args:
        rope: see `rope_fields`.
        rotary_dim: dimensions of a head that turn.
        max_position: the longest context that `config.json` tells.
    """
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return RopeScaling(kind="linear", factor=rope.number("factor"))
        case "dynamic":
            return RopeScaling(kind="dynamic", factor=rope.number("factor"), original_max_position=max_position)
        case "llama3":
            return _llama3(rope)
        case "yarn":
            return _yarn(rope, max_position)
        case "longrope" | "su":
            return _longrope(rope, rotary_dim, max_position)
    raise unsupported(f"{rope.source}: rope scaling {kind!r} is not supported; {HUGGING_FACE_KINDS} are")


def gguf_rope_scaling(fields: Fields, key: str, max_position: int) -> RopeScaling | None:
    """The scaling that GGUF metadata tell.

    Args:
        fields: the metadata.
        key: their prefix, the architecture and a dot.
        max_position: the longest context that they tell.
    """
    kind = fields.values.get(key + "rope.scaling.type", "none")
    match kind:
        case "none":
            return None
        case "linear":
            return RopeScaling(kind="linear", factor=fields.number(key + "rope.scaling.factor"))
        case "yarn":
            factor = fields.number(key + "rope.scaling.factor")
            return RopeScaling(
                kind="yarn",
                factor=factor,
                original_max_position=fields.integer(key + "rope.scaling.original_context_length", max_position),
                attention_factor=yarn_attention_factor(factor),
            )
    raise unsupported(f"{fields.source}: rope scaling {kind!r} is not supported in GGUF files; linear and yarn are")


def longest_position(scaling: RopeScaling | None, max_position: int) -> int:
    """The context that a scaling makes possible; only `yarn` and `dynamic` checkpoints leave that to be worked out."""
    if scaling is not None and scaling.kind in ("yarn", "dynamic"):
        return max(max_position, int(scaling.original_max_position * scaling.factor))
    return max_position


def yarn_attention_factor(factor: float, scale: float = 1.0) -> float:
    """Peng et al. 2023, arXiv:2309.00071, equation 22: scores grow with the logarithm of the stretch."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(rope: Fields) -> RopeScaling:
    scaling = RopeScaling(
        kind="llama3",
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position=rope.integer("original_max_position_embeddings"),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise rope.wrong("high_freq_factor", "above low_freq_factor")
    return scaling


def _yarn(rope: Fields, max_position: int) -> RopeScaling:
    original = rope.integer("original_max_position_embeddings", max_position)
    factor = rope.number("factor", max(max_position / original, 1.0))
    attention_factor = rope.optional_number("attention_factor")
    if attention_factor is None:
        scale, scale_all = rope.values.get("mscale"), rope.values.get("mscale_all_dim")
        if scale and scale_all:
            attention_factor = yarn_attention_factor(factor, rope.number("mscale"))
            attention_factor /= yarn_attention_factor(factor, rope.number("mscale_all_dim"))
        else:
            attention_factor = yarn_attention_factor(factor)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        is_truncated=rope.flag("truncate", default=True),
        attention_factor=attention_factor,
    )


def _longrope(rope: Fields, rotary_dim: int, max_position: int) -> RopeScaling:
    original = rope.integer("original_max_position_embeddings", max_position)
    factor = rope.number("factor", max(max_position / original, 1.0))
    attention_factor = rope.optional_number("attention_factor")
    return RopeScaling(
        kind="longrope",
        factor=factor,
        original_max_position=original,
        attention_factor=longrope_attention_factor(factor, original) if attention_factor is None else attention_factor,
        short_factors=rope.numbers("short_factor", rotary_dim // 2),
        long_factors=rope.numbers("long_factor", rotary_dim // 2),
    )


def longrope_attention_factor(factor: float, original_max_position: int) -> float:
    """Ding et al. 2024, arXiv:2402.13753: sqrt(1 + ln(stretch) / ln(original context))."""
    return math.sqrt(1 + math.log(factor) / math.log(original_max_position)) if factor > 1 else 1.0
