"""Fills the inputs of a step in host memory, as `step_layout` laid them out. No tensors, no device.

Rows beyond the batch pad a graph: token 0 at position 0, written nowhere (slot -1), attending to nothing (length 0).
"""

import numpy as np

from forebay_server.engine.flat_batch import FlatBatch
from forebay_server.engine.gpu.block_rows import BlockRows
from forebay_server.engine.gpu.step_layout import HostViews, StepSizes, table_width


def exact_sizes(batch: FlatBatch, num_decodes: int, block_size: int) -> StepSizes:
    """The sizes of a step without padding.

    Args:
        batch: of the step.
        num_decodes: its parts with one token, which come first.
        block_size: tokens in a block.
    """
    lengths = [part.context_len + 1 for part in batch.parts[:num_decodes]]
    lengths += [part.context_len for part in batch.parts[num_decodes:]]  # the chunk itself is not read through pages
    values = batch.sampling_values
    return StepSizes(
        num_tokens=sum(len(part.token_ids) for part in batch.parts),
        num_decodes=num_decodes,
        num_prefills=len(batch.parts) - num_decodes,
        table_width=table_width(-(-max(lengths) // block_size)),
        num_rows=len(batch.rows),
        num_sampled=0 if values is None else values.shape[1],
        num_pending=len(batch.pending),
    )


def fill(host: HostViews, batch: FlatBatch, num_decodes: int, block_rows: BlockRows, block_size: int) -> None:
    """Write a step's inputs.

    Args:
        host: views of sizes that hold the batch.
        batch: of the step.
        num_decodes: its parts with one token, which come first.
        block_rows: of the requests.
        block_size: tokens in a block.
    """
    block_rows.start_step()
    _fill_decodes(host, batch, num_decodes, block_rows, block_size)
    _fill_prefills(host, batch, num_decodes, block_rows, block_size)
    rows = host["rows"]
    rows[:] = batch.rows if len(batch.rows) == len(rows) else np.arange(len(rows))
    if batch.pending:
        host["pending"][:, : len(batch.pending)] = np.array(batch.pending, dtype=np.int64).T
    if batch.sampling_values is not None:
        host["sampling"][:, : batch.sampling_values.shape[1]] = batch.sampling_values


def _fill_decodes(host: HostViews, batch: FlatBatch, num_decodes: int, block_rows: BlockRows, block_size: int) -> None:
    decodes = batch.parts[:num_decodes]
    table = host["block_table"]
    for index, part in enumerate(decodes):
        num_blocks = part.context_len // block_size + 1
        table[index, :num_blocks] = block_rows.of(part.request_id, part.block_ids)[:num_blocks]
    contexts = np.array([part.context_len for part in decodes], dtype=np.int64)
    num_rows = host["seq_lens"].shape[0]
    host["token_ids"][:num_decodes] = [part.token_ids[0] for part in decodes]
    host["token_ids"][num_decodes:num_rows] = 0
    host["positions"][:num_decodes] = contexts
    host["positions"][num_decodes:num_rows] = 0
    blocks = table[np.arange(num_decodes), contexts // block_size].astype(np.int64)
    host["slot_mapping"][:num_decodes] = blocks * block_size + contexts % block_size
    host["slot_mapping"][num_decodes:num_rows] = -1
    host["seq_lens"][:num_decodes] = contexts + 1
    host["seq_lens"][num_decodes:] = 0


def _fill_prefills(host: HostViews, batch: FlatBatch, num_decodes: int, block_rows: BlockRows, block_size: int) -> None:
    start = num_decodes
    host["cu_seqlens"][0] = 0
    for index, part in enumerate(batch.parts[num_decodes:]):
        row = block_rows.of(part.request_id, part.block_ids)
        end = start + len(part.token_ids)
        positions = np.arange(part.context_len, part.context_len + len(part.token_ids))
        host["token_ids"][start:end] = part.token_ids
        host["positions"][start:end] = positions
        blocks = row[positions // block_size].astype(np.int64)
        host["slot_mapping"][start:end] = blocks * block_size + positions % block_size
        num_context_blocks = -(-part.context_len // block_size)
        host["block_table"][num_decodes + index, :num_context_blocks] = row[:num_context_blocks]
        host["context_lens"][index] = part.context_len
        host["cu_seqlens"][index + 1] = end - num_decodes
        start = end
