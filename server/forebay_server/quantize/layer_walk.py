"""Calibration: the prompts go through the model one layer at a time, and every linear layer's inputs are summed up.

A layer is quantized before its outputs become the inputs of the next, so that each layer corrects what came before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from forebay_server.layers.attention import AttentionMetadata, SequenceSlice, build_attention_metadata
from forebay_server.layers.experts_linear import ExpertsLinear
from forebay_server.layers.kv_cache import KVCache
from forebay_server.layers.linear import Linear
from forebay_server.layers.rotary_embedding import rotary_tables
from forebay_server.models.decoder import CausalLM, DecoderLayer

BLOCK_SIZE = 16
BATCH_TOKENS = 2048


@dataclass(slots=True)
class InputStatistics:
    """What calibration saw of a linear layer's inputs."""

    num_tokens: int
    largest: torch.Tensor
    """[in_features], float32: largest magnitude of each input."""
    mean: torch.Tensor
    """[in_features], float32: mean magnitude of each input."""
    products: torch.Tensor
    """[in_features, in_features], float32: xᵀx, summed over tokens."""

    @staticmethod
    def empty(in_features: int) -> "InputStatistics":
        """Of no tokens."""
        zeros = torch.zeros(in_features)
        return InputStatistics(0, zeros, zeros.clone(), torch.zeros(in_features, in_features))

    def add(self, x: torch.Tensor) -> None:
        """Take [num_tokens, in_features] in."""
        x = x.float()
        magnitude = x.abs()
        total = self.num_tokens + len(x)
        self.mean = self.mean * (self.num_tokens / total) + magnitude.sum(0) / total
        self.largest = torch.maximum(self.largest, magnitude.amax(0))
        self.products.addmm_(x.T, x)
        self.num_tokens = total


@dataclass(slots=True)
class _Batch:
    positions: torch.Tensor
    metadata: AttentionMetadata
    cache: KVCache
    hidden: torch.Tensor
    residual: torch.Tensor


class LayerWalk:
    """Prompts on their way through a model.

    Args:
        model: with its weights.
        prompts: token ids; empty for methods that need none.
    """

    def __init__(self, model: CausalLM, prompts: Sequence[Sequence[int]]) -> None:
        self._config = model.config
        longest = max(map(len, prompts), default=1)
        self._tables = rotary_tables(model.config, max(longest, 2))
        windows = {model.config.sliding_window(layer) for layer in range(model.config.num_layers)}
        self._batches = [_batch(model, group, windows) for group in _groups(prompts)]

    @torch.inference_mode()
    def statistics(self, index: int, layer: DecoderLayer, *, of_experts: bool = True) -> dict[str, InputStatistics]:
        """What layer `index` feeds to its linear layers, by `inputs_name`; without those of experts if not wanted."""
        found: dict[str, InputStatistics] = {}

        def add(name: str, x: torch.Tensor) -> None:
            if name not in found:
                found[name] = InputStatistics.empty(x.shape[1])
            found[name].add(x)

        with ExitStack() as watched:
            for name, module in layer.named_modules():
                if isinstance(module, ExpertsLinear) and of_experts:
                    watched.enter_context(_watched_experts(module, name, add))
                elif isinstance(module, Linear):
                    watched.callback(module.register_forward_pre_hook(_adder(name, add)).remove)
            for batch in self._batches:
                self._run(index, layer, batch)
        return found

    @torch.inference_mode()
    def advance(self, index: int, layer: DecoderLayer) -> None:
        """Take the prompts through layer `index`."""
        for batch in self._batches:
            batch.hidden, batch.residual = self._run(index, layer, batch)

    def state(self) -> dict[str, torch.Tensor]:
        """Where the prompts are."""
        return {
            f"{index}.{name}": tensor
            for index, batch in enumerate(self._batches)
            for name, tensor in (("hidden", batch.hidden), ("residual", batch.residual))
        }

    def go_on(self, state: Mapping[str, torch.Tensor]) -> None:
        """Begin where the same prompts were in another walk."""
        for index, batch in enumerate(self._batches):
            batch.hidden, batch.residual = state[f"{index}.hidden"], state[f"{index}.residual"]

    def _run(self, index: int, layer: DecoderLayer, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor]:
        table = self._tables[self._config.rotary_table(index)]
        outputs: tuple[torch.Tensor, torch.Tensor] = layer(
            batch.hidden, batch.residual, batch.positions, table, batch.cache.layer(0), batch.metadata
        )
        return outputs


def inputs_name(linear: Linear, name: str, part: str) -> str:
    """By what name `LayerWalk.statistics` has the inputs of a part of a linear layer: each expert has its own."""
    return f"{name}.{part.partition('.')[0]}" if isinstance(linear, ExpertsLinear) else name


def _adder(name: str, add: Callable[[str, torch.Tensor], None]) -> Any:
    return lambda _, inputs: add(name, inputs[0])


@contextmanager
def _watched_experts(experts: ExpertsLinear, name: str, add: Callable[[str, torch.Tensor], None]) -> Iterator[None]:
    """Experts are called by their number, which hooks of modules do not see."""
    multiply = experts.of_expert

    def of_expert(x: torch.Tensor, expert: int) -> torch.Tensor:
        add(inputs_name(experts, name, f"{expert}"), x)
        return multiply(x, expert)

    vars(experts)["of_expert"] = of_expert
    try:
        yield
    finally:
        del vars(experts)["of_expert"]


def _groups(prompts: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Batches of about `BATCH_TOKENS`; in each, prompts of one token come first, as the attention wants it."""
    groups: list[list[Sequence[int]]] = []
    room = 0
    for prompt in sorted(prompts, key=len):
        if not groups or room < len(prompt):
            groups.append([])
            room = BATCH_TOKENS
        groups[-1].append(prompt)
        room -= len(prompt)
    return groups


@torch.inference_mode()
def _batch(model: CausalLM, prompts: Sequence[Sequence[int]], windows: set[int | None]) -> _Batch:
    config, device = model.config, torch.device("cpu")
    slices: list[SequenceSlice] = []
    positions: list[int] = []
    used = 0
    for prompt in prompts:
        num_blocks = -(-len(prompt) // BLOCK_SIZE)
        slices.append(SequenceSlice(len(prompt), 0, range(used, used + num_blocks)))
        positions.extend(range(len(prompt)))
        used += num_blocks
    hidden = model.embed(torch.tensor([token for prompt in prompts for token in prompt]))
    shape = (1, 2, used, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    return _Batch(
        positions=torch.tensor(positions),
        metadata=build_attention_metadata(slices, BLOCK_SIZE, device, windows),
        cache=KVCache(torch.zeros(shape, dtype=hidden.dtype)),
        hidden=hidden,
        residual=torch.zeros_like(hidden),
    )
