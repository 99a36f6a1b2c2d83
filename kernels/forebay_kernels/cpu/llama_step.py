"""LlamaStep: the whole forward of a Llama-type model on a CPU as one call of the C++ library."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from forebay_kernels.cpu.library import load_library
from forebay_kernels.cpu.packing import PackedWeight
from forebay_kernels.cpu.structures import BatchStructure, HeadBatchStructure, LayerStructure, ModelStructure

Int32s = npt.NDArray[np.int32]

_CACHE_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class LlamaLayerWeights:
    """One layer, packed."""

    input_norm: torch.Tensor
    """[hidden_size], float32, contiguous; as every norm here."""
    attention_norm: torch.Tensor
    """Of what the feed-forward reads."""
    qkv: PackedWeight
    output: PackedWeight
    gate_up: PackedWeight
    """Packed with num_parts=2."""
    down: PackedWeight
    query_norm: torch.Tensor | None = None
    """[head_dim]: Qwen 3 norms each head's query and key."""
    key_norm: torch.Tensor | None = None
    window: int | None = None
    """Keys up to its own that a token sees; None: all."""


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """A model, packed."""

    layers: Sequence[LlamaLayerWeights]
    final_norm: torch.Tensor
    head: PackedWeight
    table: PackedWeight | None
    """Whose rows are looked up, [vocab_size, hidden_size]; None: the head, which is tied to it."""

    @property
    def num_bytes(self) -> int:
        """Bytes that they take."""
        matrices = [
            self.head,
            *(m for layer in self.layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)),
        ]
        return sum(matrix.num_bytes for matrix in matrices) + (0 if self.table is None else self.table.num_bytes)


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """The numbers of the configuration that the step needs."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    attention_scale: float | None = None
    """Scores are multiplied with it; None: 1 / sqrt(head_dim)."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one step; several rows of a sequence follow one another."""

    token_ids: Int32s
    """[num_tokens]."""
    starts: Int32s
    """[num_sequences + 1]: first row of each sequence, then num_tokens; no sequence is empty."""
    context_lens: Int32s
    """[num_sequences]: tokens before the first row, which are in the cache."""
    blocks: Int32s
    """The block tables of all sequences, one after the other."""
    block_offsets: Int32s
    """[num_sequences]: where each table begins."""
    wanted_rows: Int32s
    """[num_wanted]: rows whose logits or hidden states are wanted."""


class LlamaStep:
    """Computes steps in threads of its own. One thread at a time may call it.

    The residual stream and everything between the products is float32; keys and values are rounded to the cache's dtype
    before any query reads them, so that a result does not depend on how a prompt was cut into steps.

    Args:
        sizes: of the model.
        weights: packed; kept.
        kv_cache: [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]: float32, bfloat16 or int8. Its
            memory alone: where a number lies in it is the step's affair (`source/cache.h`).
        rotary_cos_sin: [num_positions, rotary_dim], float32, contiguous: cosines, then sines; the other numbers of a
            head do not turn.
        max_tokens: rows of a step at most.
        num_threads: that compute, the caller's among them.
        variant: of the library.
        kv_scales: kv_cache's shape without head_dim, float32, where kv_cache is int8.

    Raises:
        ValueError: sizes or tensors that the library cannot work with.
        MemoryError: there is no memory for the intermediate results.
    """

    def __init__(
        self,
        sizes: LlamaSizes,
        weights: LlamaWeights,
        kv_cache: torch.Tensor,
        rotary_cos_sin: torch.Tensor,
        *,
        max_tokens: int,
        num_threads: int,
        variant: str,
        kv_scales: torch.Tensor | None = None,
    ) -> None:
        _check(sizes, weights, kv_cache, rotary_cos_sin, kv_scales)
        self.sizes = sizes
        self.max_tokens = max_tokens
        self._kept = (weights, kv_cache, rotary_cos_sin, kv_scales)
        self._library = load_library(variant)
        layers = (LayerStructure * len(weights.layers))(*(_layer(layer) for layer in weights.layers))
        model = ModelStructure(
            num_layers=len(weights.layers),
            hidden_size=sizes.hidden_size,
            intermediate_size=sizes.intermediate_size,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            vocab_size=sizes.vocab_size,
            cache_kind=_CACHE_KINDS[kv_cache.dtype],
            num_blocks=kv_cache.shape[2],
            block_size=kv_cache.shape[3],
            max_tokens=max_tokens,
            num_threads=num_threads,
            num_positions=rotary_cos_sin.shape[0],
            rotary_dim=rotary_cos_sin.shape[1],
            eps=sizes.rms_norm_eps,
            attention_scale=sizes.attention_scale or 1 / math.sqrt(sizes.head_dim),
            layers=layers,
            final_norm=weights.final_norm.data_ptr(),
            embedding=(weights.table or weights.head).structure(),
            head=weights.head.structure(),
            rotary=rotary_cos_sin.data_ptr(),
            cache=kv_cache.data_ptr(),
            cache_scales=None if kv_scales is None else kv_scales.data_ptr(),
        )
        self._step = self._library.forebay_create_step(ctypes.byref(model))
        if not self._step:
            raise MemoryError(f"no memory for the intermediate results of {max_tokens} tokens")

    def __del__(self) -> None:
        if getattr(self, "_step", None):
            self._library.forebay_destroy_step(self._step)

    def hidden(self, batch: StepBatch) -> torch.Tensor:
        """Run a step; [num_wanted, hidden_size], float32: the wanted rows after the final norm."""
        out = torch.empty(len(batch.wanted_rows), self.sizes.hidden_size)
        self._run(batch, hidden=out.data_ptr())
        return out

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Run a step; [num_wanted, vocab_size], float32."""
        out = torch.empty(len(batch.wanted_rows), self.sizes.vocab_size)
        self._run(batch, logits=out.data_ptr(), logits_stride=out.shape[1])
        return out

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of what `hidden` returned: [num_rows, hidden_size] -> [num_rows, vocab_size], float32.

        They equal those that `logits` returns bit for bit.
        """
        hidden = hidden.contiguous()
        out = torch.empty(len(hidden), self.sizes.vocab_size)
        for first in range(0, len(hidden), self.max_tokens):
            rows = hidden[first : first + self.max_tokens]
            structure = HeadBatchStructure(
                num_rows=len(rows), hidden=rows.data_ptr(), logits=out[first : first + len(rows)].data_ptr()
            )
            self._library.forebay_run_head(self._step, ctypes.byref(structure))
        return out

    def best(self, batch: StepBatch) -> tuple[Int32s, npt.NDArray[np.float32]]:
        """Run a step; the likeliest token of each wanted row, the first of equals, and its logit.

        The logit is NaN where any logit of the row is.
        """
        ids = np.empty(len(batch.wanted_rows), dtype=np.int32)
        logits = np.empty(len(batch.wanted_rows), dtype=np.float32)
        self._run(batch, best_ids=ids.ctypes.data, best_logits=logits.ctypes.data)
        return ids, logits

    def _run(self, batch: StepBatch, **outputs: Any) -> None:
        num_tokens = len(batch.token_ids)
        if num_tokens > self.max_tokens:
            raise ValueError(f"batch: expected at most {self.max_tokens} tokens, got {num_tokens}")
        if not num_tokens:
            return
        structure = BatchStructure(
            num_tokens=num_tokens,
            num_sequences=len(batch.context_lens),
            num_wanted=len(batch.wanted_rows),
            token_ids=batch.token_ids.ctypes.data,
            starts=batch.starts.ctypes.data,
            context_lens=batch.context_lens.ctypes.data,
            blocks=batch.blocks.ctypes.data,
            block_offsets=batch.block_offsets.ctypes.data,
            wanted_rows=batch.wanted_rows.ctypes.data,
            **outputs,
        )
        if self._library.forebay_run_step(self._step, ctypes.byref(structure)):
            raise ValueError(
                "batch: a token, position, block or row outside of the model's, or a sequence without rows"
            )


def _layer(layer: LlamaLayerWeights) -> LayerStructure:
    return LayerStructure(
        input_norm=layer.input_norm.data_ptr(),
        attention_norm=layer.attention_norm.data_ptr(),
        query_norm=None if layer.query_norm is None else layer.query_norm.data_ptr(),
        key_norm=None if layer.key_norm is None else layer.key_norm.data_ptr(),
        qkv=layer.qkv.structure(),
        output=layer.output.structure(),
        gate_up=layer.gate_up.structure(),
        down=layer.down.structure(),
        window=layer.window or 0,
    )


def _check(
    sizes: LlamaSizes,
    weights: LlamaWeights,
    kv_cache: torch.Tensor,
    rotary_cos_sin: torch.Tensor,
    kv_scales: torch.Tensor | None,
) -> None:
    """Refuse what the library would read wrongly."""
    if sizes.hidden_size % 16 or sizes.head_dim % 16 or not 16 <= sizes.head_dim <= MAX_HEAD_DIM:
        raise ValueError(
            f"expected hidden_size and head_dim to be multiples of 16 and head_dim at most {MAX_HEAD_DIM}, "
            f"got {sizes.hidden_size} and {sizes.head_dim}"
        )
    shape = (len(weights.layers), 2, *kv_cache.shape[2:4], sizes.num_kv_heads, sizes.head_dim)
    if kv_cache.dtype not in _CACHE_KINDS or tuple(kv_cache.shape) != shape or not kv_cache.is_contiguous():
        raise ValueError(
            f"kv_cache: expected {shape} of float32, bfloat16 or int8, got {tuple(kv_cache.shape)} of {kv_cache.dtype}"
        )
    if (kv_scales is None) != (kv_cache.dtype != torch.int8):
        raise ValueError("kv_scales: needed where kv_cache is int8, and only there")
    if kv_scales is not None and (tuple(kv_scales.shape) != shape[:-1] or kv_scales.dtype != torch.float32):
        raise ValueError(
            f"kv_scales: expected {shape[:-1]} of float32, got {tuple(kv_scales.shape)} of {kv_scales.dtype}"
        )
    if (
        rotary_cos_sin.dtype != torch.float32
        or rotary_cos_sin.shape[1] % 16
        or rotary_cos_sin.shape[1] > sizes.head_dim
        or not rotary_cos_sin.is_contiguous()
    ):
        raise ValueError(
            f"rotary_cos_sin: expected [positions, a multiple of 16 up to {sizes.head_dim}] of float32, "
            f"got {tuple(rotary_cos_sin.shape)} of {rotary_cos_sin.dtype}"
        )
