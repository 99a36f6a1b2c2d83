"""KernelModel: one flat batch through a model whose operations are kernels, with one copy of its inputs a step.

A step that only decodes replays a CUDA graph where one was captured for its shape: its batch is padded with rows that
write nothing and attend to nothing.
"""

import logging
from dataclasses import dataclass

import torch

from forebay_server.engine.flat_batch import FlatBatch
from forebay_server.engine.gpu.block_rows import BlockRows
from forebay_server.engine.gpu.graph_shapes import MAX_GRAPHS, GraphShape, graph_shape
from forebay_server.engine.gpu.graphs import Capture, Replay
from forebay_server.engine.gpu.staging import Staging
from forebay_server.engine.gpu.step_inputs import exact_sizes, fill
from forebay_server.engine.gpu.step_layout import DeviceViews, StepLayout, StepSizes, step_layout, table_width
from forebay_server.layers.kernel_attention import DecodeRows, KernelMetadata, PrefillRows
from forebay_server.layers.kv_cache import KVCache
from forebay_server.models.decoder import CausalLM

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured decode step."""

    layout: StepLayout
    inputs: torch.Tensor
    """The buffer that it reads: [layout.num_bytes], uint8."""
    replay: Replay
    hidden: torch.Tensor
    """What a replay fills: [num_seqs, hidden_size]."""


class KernelModel:
    """A model with its KV cache on a device where kernels compute.

    Blocks that get a new owner are not cleared: kernels read no slot that was not written.

    Args:
        model: with its weights.
        kv_cache: of the model's size.
        rotary_tables: on the device.
        capture: makes graphs; None: every step starts its kernels one by one.
    """

    def __init__(
        self, model: CausalLM, kv_cache: KVCache, rotary_tables: tuple[torch.Tensor, ...], capture: Capture | None
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._rotary_tables = rotary_tables
        self._max_model_len = rotary_tables[0].shape[0]
        self._device = kv_cache.numbers.device
        self._capture = capture
        self._graphs: dict[GraphShape, _Graph] = {}
        self._staging = Staging(self._device)
        self._block_rows = BlockRows()
        self.sampling_values = torch.empty(0, device=self._device)
        """The last batch's `sampling_values`, on the device; the next step writes over them."""

    def compute(
        self, batch: FlatBatch, hidden: torch.Tensor | None = None, last_token_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `ForwardPass.compute`; the next step writes over the result."""
        num_parts = len(batch.parts)
        num_decodes = next((i for i, part in enumerate(batch.parts) if len(part.token_ids) > 1), num_parts)
        longest = max((part.context_len + 1 for part in batch.parts[:num_decodes]), default=0)
        if num_decodes == num_parts and self._capture is not None:
            shape = graph_shape(num_decodes, longest, self._max_model_len)
            if shape is not None and (shape in self._graphs or len(self._graphs) < MAX_GRAPHS):
                hidden = self._decode(batch, shape, self._capture, last_token_ids)[:num_decodes]
                return hidden if batch.rows == list(range(num_decodes)) else hidden[self._tensor(batch.rows)]
        layout = step_layout(exact_sizes(batch, num_decodes, self._kv_cache.block_size))
        inputs = torch.empty(layout.num_bytes, dtype=torch.uint8, device=self._device)
        self._send(batch, num_decodes, layout, inputs, last_token_ids)
        max_num_new = max((len(part.token_ids) for part in batch.parts[num_decodes:]), default=0)
        return self._forward(layout.on_device(inputs), longest, max_num_new, hidden)

    def prepare_graphs(self, num_seqs: int) -> None:
        """Capture a step of so many of the longest sequences, without one: padding alone writes and reads nothing."""
        shape = graph_shape(num_seqs, self._max_model_len, self._max_model_len)
        if self._capture is not None and shape is not None and shape not in self._graphs:
            self._decode(FlatBatch([], [], []), shape, self._capture)

    def _decode(
        self, batch: FlatBatch, shape: GraphShape, capture: Capture, last_token_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[shape.num_seqs, hidden_size] of a step that only decodes, by a graph; the first time without, to make it."""
        num_decodes = len(batch.parts)
        graph = self._graphs.get(shape)
        if graph is not None:
            self._send(batch, num_decodes, graph.layout, graph.inputs, last_token_ids)
            graph.replay()
            return graph.hidden
        layout = step_layout(self._graph_sizes(shape))
        inputs = torch.empty(layout.num_bytes, dtype=torch.uint8, device=self._device)
        views = layout.on_device(inputs)
        self._send(batch, num_decodes, layout, inputs, last_token_ids)
        hidden = self._forward(views, shape.max_seq_len)  # compiles what the graph will hold
        replay, filled = capture(lambda: self._forward(views, shape.max_seq_len))
        self._graphs[shape] = _Graph(layout, inputs, replay, filled)
        logger.info("captured a graph of %d sequences up to %d tokens", shape.num_seqs, shape.max_seq_len)
        return hidden

    def _graph_sizes(self, shape: GraphShape) -> StepSizes:
        num_seqs = shape.num_seqs
        return StepSizes(
            num_tokens=num_seqs,
            num_decodes=num_seqs,
            num_prefills=0,
            table_width=table_width(-(-shape.max_seq_len // self._kv_cache.block_size)),
            num_rows=num_seqs,
            num_sampled=num_seqs,
            num_pending=num_seqs,
        )

    def _send(
        self,
        batch: FlatBatch,
        num_decodes: int,
        layout: StepLayout,
        inputs: torch.Tensor,
        last_token_ids: torch.Tensor | None,
    ) -> None:
        """Fill host memory, start its copy to the device, and put in the tokens that only the device knows."""
        host = layout.on_host(self._staging.begin(layout.num_bytes))
        fill(host, batch, num_decodes, self._block_rows, self._kv_cache.block_size)
        self._staging.send(inputs)
        num_sampled = 0 if batch.sampling_values is None else batch.sampling_values.shape[1]
        views = layout.on_device(inputs)
        self.sampling_values = views["sampling"][:, :num_sampled]
        if batch.pending:
            if last_token_ids is None:
                raise ValueError("tokens are pending that no step before has sampled")
            rows, last_rows = views["pending"][:, : len(batch.pending)]
            views["token_ids"].index_copy_(0, rows, last_token_ids.index_select(0, last_rows))

    def _forward(
        self, views: DeviceViews, longest: int, max_num_new: int = 0, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Start the model's kernels: [num_rows, hidden_size].

        Args:
            views: the inputs.
            longest: tokens of the longest decoding sequence, or more.
            max_num_new: new tokens of the others, at most.
            hidden: of the stage before.
        """
        num_decodes, num_prefills = views["seq_lens"].shape[0], views["context_lens"].shape[0]
        table = views["block_table"]
        metadata = KernelMetadata(
            slot_mapping=views["slot_mapping"],
            decodes=DecodeRows(table[:num_decodes], views["seq_lens"], longest) if num_decodes else None,
            prefills=PrefillRows(table[num_decodes:], views["cu_seqlens"], views["context_lens"], max_num_new)
            if num_prefills
            else None,
        )
        computed: torch.Tensor = self._model(
            views["token_ids"], views["positions"], self._rotary_tables, self._kv_cache, metadata, views["rows"], hidden
        )
        return computed

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
