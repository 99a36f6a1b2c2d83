"""Moves a model's weights into the form that the C++ step for CPUs reads, and tells which models that step can run."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import torch

from forebay_kernels.cpu.arena import Arena
from forebay_kernels.cpu.llama_step import MAX_HEAD_DIM, LlamaLayerWeights, LlamaSizes, LlamaWeights
from forebay_kernels.cpu.packing import PackedWeight, pack
from forebay_kernels.int4_weights import Int4Weight
from forebay_kernels.int8_weights import Int8Weight
from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.linear import Linear
from forebay_server.layers.norm import RMSNorm
from forebay_server.layers.self_attention import SelfAttention
from forebay_server.layers.weight_forms import LinearWeight, concatenate, dequantize
from forebay_server.models.decoder import CausalLM, DecoderLayer
from forebay_server.weights.loader import give_memory_back


def why_not(model: CausalLM) -> str | None:
    """What the C++ step cannot do with this model and its weights; None: it runs it."""
    kind = type(model)
    if kind.forward is not CausalLM.forward or kind.embed is not CausalLM.embed:
        return "the architecture computes more than the step knows"
    if model.config.logit_soft_cap is not None:
        return "logits have a soft cap"
    if model.config.hidden_size % 16 or model.config.head_dim % 16 or model.config.head_dim > MAX_HEAD_DIM:
        return "hidden_size or head_dim is no multiple of 16, or a head is too large"
    for layer in _layers(model):
        reason = _why_not_layer(layer)
        if reason is not None:
            return reason
    head = model.embed_tokens if model.lm_head is None else model.lm_head
    return next((reason for reason in map(_why_not_linear, [*_linears(model), head]) if reason is not None), None)


def _why_not_layer(layer: torch.nn.Module) -> str | None:
    if type(layer).forward is not DecoderLayer.forward or not isinstance(layer, DecoderLayer):
        return "layers compute more than the step knows"
    attention, mlp = layer.self_attn, layer.mlp
    if type(attention).forward is not SelfAttention.forward or type(mlp) is not GatedMLP:
        return "attention or feed-forward part compute more than the step knows"
    if mlp.activation != "silu":
        return f"the activation is {mlp.activation}"
    if attention.rotary_dim % 16:
        return "the part of each head that turns is no multiple of 16"
    if not attention.is_turning:
        return "some layers have no rotary positions"
    if attention.soft_cap is not None:
        return "attention has a soft cap"
    return None


def _why_not_linear(linear: Linear) -> str | None:
    for weight in linear.weights:
        if isinstance(weight, Int8Weight):
            if not linear.quantizes_input:
                return "weights are quantized and their inputs are not"
        elif isinstance(weight, torch.Tensor):
            if weight.dtype != torch.bfloat16:
                return f"weights are {str(weight.dtype).removeprefix('torch.')}"
        elif not isinstance(weight, Int4Weight):
            return "weights have a form that the step does not know"
    return None


def sizes_of(model: CausalLM) -> LlamaSizes:
    """The numbers of the configuration that the step needs."""
    config = model.config
    return LlamaSizes(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        attention_scale=config.attention_scale,
    )


def take_weights(model: CausalLM) -> LlamaWeights:
    """Pack all weights and take them out of the model, one after the other, so that they are never there twice.

    Args:
        model: one that `why_not` has nothing against; it computes nothing afterwards.
    """
    arena = Arena()
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        layers = list(threads.map(lambda layer: _take_layer(layer, arena), _layers(model)))
    table = _take(model.embed_tokens, arena)
    if model.lm_head is None:
        weights = LlamaWeights(layers, _norm(model.norm), head=table, table=None)
    else:
        weights = LlamaWeights(layers, _norm(model.norm), head=_take(model.lm_head, arena), table=table)
    give_memory_back()
    return weights


def _take_layer(layer: DecoderLayer, arena: Arena) -> LlamaLayerWeights:
    attention, mlp = layer.self_attn, cast(GatedMLP, layer.mlp)
    return LlamaLayerWeights(
        input_norm=_norm(layer.input_layernorm),
        attention_norm=_norm(layer.post_attention_layernorm),
        qkv=_take(attention.qkv_proj, arena),
        output=_take(attention.o_proj, arena),
        gate_up=_take(mlp.gate_up_proj, arena, num_parts=2),
        down=_take(mlp.down_proj, arena),
        query_norm=None if attention.q_norm is None else _norm(attention.q_norm),
        key_norm=None if attention.k_norm is None else _norm(attention.k_norm),
        window=attention.window,
    )


def _take(linear: Linear, arena: Arena, num_parts: int = 1) -> PackedWeight:
    weights, linear.weights = linear.weights, []
    return pack(_as_one(weights), linear.bias, num_parts=num_parts, arena=arena)


def _as_one(weights: list[LinearWeight]) -> torch.Tensor | Int8Weight | Int4Weight:
    """One weight of all parts; in bfloat16 where they were quantized differently."""
    one = weights[0] if len(weights) == 1 else concatenate(weights)
    if one is None:
        return torch.cat([dequantize(weight).bfloat16() for weight in weights])
    return cast(torch.Tensor | Int8Weight | Int4Weight, one)


def _norm(norm: RMSNorm) -> torch.Tensor:
    return norm.multiplier.detach().float().contiguous()


def _layers(model: CausalLM) -> Iterable[DecoderLayer]:
    return cast(Iterable[DecoderLayer], model.layers)


def _linears(model: CausalLM) -> Iterable[Linear]:
    for layer in _layers(model):
        mlp = cast(GatedMLP, layer.mlp)
        yield from (layer.self_attn.qkv_proj, layer.self_attn.o_proj, mlp.gate_up_proj, mlp.down_proj)
