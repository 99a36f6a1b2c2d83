"""The forward pass of rank 0: every other rank is told to do the same before."""

import torch

from forebay_server.engine.forward_pass import BatchPart, FlatBatch, ForwardPass
from forebay_server.errors import ExitCode, StartupError
from forebay_server.layers.kv_cache import KVCache
from forebay_server.models.decoder import CausalLM
from forebay_server.parallel.messages import BlockTables, ComputeLogits, ComputeStep, StepPart
from forebay_server.parallel.ranks import Ranks


class ParallelForwardPass(ForwardPass):
    """See `ForwardPass`; an error in it ends the engine, since the ranks no longer are at the same place.

    Args:
        model: rank 0's share.
        kv_cache: of rank 0.
        max_model_len: positions that the rotary table covers.
        ranks: the others.
    """

    def __init__(self, model: CausalLM, kv_cache: KVCache, max_model_len: int, ranks: Ranks) -> None:
        super().__init__(model, kv_cache, max_model_len)
        self._ranks = ranks
        self._tables = BlockTables()

    def compute(self, batch: FlatBatch) -> torch.Tensor:
        """See `ForwardPass.compute`."""
        self._ranks.send(step_message(batch, self._tables))
        try:
            return super().compute(batch)
        except Exception as error:
            raise self._lost(error) from error

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass.logits`."""
        self._ranks.send(ComputeLogits(len(hidden)))
        try:
            return super().logits(self.model.group.broadcast(hidden))
        except Exception as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> StartupError:
        """What to end with: the failure of the rank that is to blame, where one can be told."""
        return self._ranks.failure(wait_seconds=2.0) or StartupError(
            ExitCode.DEVICE_LOST, "RankLost", f"a step failed on rank 0: {type(error).__name__}: {error}"
        )


def step_message(batch: FlatBatch, tables: BlockTables) -> ComputeStep:
    """The batch as the others are told it; `tables` then hold what they hold."""
    parts = []
    for part in batch.parts:
        num_kept, more = tables.difference(part.request_id, part.block_ids)
        parts.append(StepPart(part.request_id, part.token_ids, part.context_len, num_kept, more))
    tables.remember({part.request_id: list(part.block_ids) for part in batch.parts})
    return ComputeStep(batch.new_block_ids, parts, batch.rows)


def batch_of(message: ComputeStep, tables: BlockTables) -> FlatBatch:
    """The batch that `step_message` told."""
    parts = [
        BatchPart(
            part.request_id,
            part.token_ids,
            part.context_len,
            tables.whole(part.request_id, part.num_kept_blocks, part.more_block_ids),
        )
        for part in message.parts
    ]
    tables.remember({part.request_id: part.block_ids for part in parts})
    return FlatBatch(message.new_block_ids, parts, message.rows)
