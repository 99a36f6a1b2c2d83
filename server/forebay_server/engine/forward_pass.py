"""ForwardPass: one flat batch through the model, to hidden states and logits. It knows nothing of sampling."""

import torch

from forebay_kernels.dispatch import runs_triton
from forebay_server.engine.flat_batch import FlatBatch
from forebay_server.engine.gpu.graphs import Capture, cuda_capture
from forebay_server.engine.gpu.kernel_model import KernelModel
from forebay_server.layers.attention import SequenceSlice, build_attention_metadata
from forebay_server.layers.kv_cache import KVCache
from forebay_server.layers.rotary_embedding import rotary_tables
from forebay_server.models.decoder import CausalLM


class ForwardPass:
    """A model with its KV cache on one device; on GPUs kernels compute it (`gpu.kernel_model`), else torch operators.

    Args:
        model: with its weights.
        kv_cache: all zero, of the model's size.
        max_model_len: positions that the rotary table covers.
        capture: makes graphs of decode steps; None: what the device has.
    """

    def __init__(self, model: CausalLM, kv_cache: KVCache, max_model_len: int, capture: Capture | None = None) -> None:
        self.model = model
        self.kv_cache = kv_cache
        self._device = kv_cache.numbers.device
        self._rotary_tables = tuple(table.to(self._device) for table in rotary_tables(model.config, max_model_len))
        self._windows = frozenset(map(model.config.sliding_window, model.layer_indices))
        self._kernels: KernelModel | None = None
        if runs_triton(self._device.type):
            capture = capture or cuda_capture(model, self._device)
            self._kernels = KernelModel(model, kv_cache, self._rotary_tables, capture)

    def compute(
        self, batch: FlatBatch, hidden: torch.Tensor | None = None, last_token_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute what this stage has of a batch; keys and values of the new tokens are written to the cache.

        Args:
            batch: of a step.
            hidden: [num_tokens, hidden_size] from the stage before; None on the first.
            last_token_ids: [n], int64, that the step before sampled, for a batch in which some are pending; only where
                kernels compute.

        Returns:
            [len(batch.rows), hidden_size]; on any stage but the last [num_tokens, hidden_size].
        """
        if self._kernels is not None:
            return self._kernels.compute(batch, hidden, last_token_ids)
        if batch.new_block_ids:
            self.kv_cache.clear(self._tensor(batch.new_block_ids))
        token_ids: list[int] = []
        positions: list[int] = []
        slices = []
        for part in batch.parts:
            num_new = len(part.token_ids)
            token_ids.extend(part.token_ids)
            positions.extend(range(part.context_len, part.context_len + num_new))
            slices.append(SequenceSlice(num_new, part.context_len, part.block_ids))
        computed: torch.Tensor = self.model(
            self._tensor(token_ids),
            self._tensor(positions),
            self._rotary_tables,
            self.kv_cache,
            build_attention_metadata(slices, self.kv_cache.block_size, self._device, self._windows),
            self._tensor(batch.rows),
            hidden,
        )
        return computed

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._device

    def prepare_graphs(self, num_seqs: int) -> None:
        """See `KernelModel.prepare_graphs`."""
        if self._kernels is not None:
            self._kernels.prepare_graphs(num_seqs)

    @property
    def sampling_values(self) -> torch.Tensor:
        """The last batch's `sampling_values` on the device, where kernels compute."""
        if self._kernels is None:
            raise ValueError("torch operators sample on the host")
        return self._kernels.sampling_values

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] -> [num_rows, vocab_size], float32."""
        return self.model.logits(hidden)

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
