"""A step as rank 0 tells it to the others, and as they understand it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from forebay_server.engine.flat_batch import BatchPart, FlatBatch
from forebay_server.engine.model_runner import flat_batch, logit_sizes
from forebay_server.engine.scheduler_output import ScheduledRequest
from forebay_server.parallel.messages import BlockTables, ComputeStep, MicroBatch, StepPart


@dataclass(frozen=True, slots=True)
class Work:
    """A part of a step that goes through the stages in one piece."""

    batch: FlatBatch
    logit_sizes: list[int]
    """See `MicroBatch`."""
    requests: list[ScheduledRequest]
    """In the order of the batch; empty on ranks that do not sample."""

    @property
    def num_tokens(self) -> int:
        """Rows of the batch."""
        return sum(len(part.token_ids) for part in self.batch.parts)


def works_of_step(micro_batches: Sequence[Sequence[ScheduledRequest]], new_block_ids: list[int]) -> list[Work]:
    """A step in parts; the first of them clears the blocks of all.

    Args:
        micro_batches: the requests of each part, in the order of their batch.
        new_block_ids: blocks with a new owner.
    """
    return [
        Work(flat_batch(requests, [] if index else new_block_ids), logit_sizes(requests), list(requests))
        for index, requests in enumerate(micro_batches)
    ]


def step_message(works: Sequence[Work], tables: BlockTables, *, with_requests: bool = False) -> ComputeStep:
    """The parts as the others are told them; close the step with `tables.remember(blocks_of(works))`.

    Args:
        works: of one step.
        tables: what the others hold.
        with_requests: for the rank that samples.
    """
    micro_batches = []
    for work in works:
        parts = []
        for part in work.batch.parts:
            num_kept, more = tables.difference(part.request_id, part.block_ids)
            parts.append(StepPart(part.request_id, part.token_ids, part.context_len, num_kept, more))
        requests = [_without_blocks(request) for request in work.requests] if with_requests and work.batch.rows else []
        micro_batches.append(MicroBatch(parts, work.batch.rows, work.logit_sizes, requests))
    return ComputeStep(works[0].batch.new_block_ids, micro_batches)


def works_of_message(message: ComputeStep, tables: BlockTables) -> list[Work]:
    """What `step_message` told; `tables` then hold the blocks of this step."""
    works = []
    for index, told in enumerate(message.micro_batches):
        parts = [
            BatchPart(
                part.request_id,
                part.token_ids,
                part.context_len,
                tables.whole(part.request_id, part.num_kept_blocks, part.more_block_ids),
            )
            for part in told.parts
        ]
        batch = FlatBatch([] if index else message.new_block_ids, parts, told.rows)
        works.append(Work(batch, told.logit_sizes, told.requests))
    tables.remember(blocks_of(works))
    return works


def blocks_of(works: Sequence[Work]) -> dict[str, list[int]]:
    """The blocks of each request of a step, copied: the scheduler adds to its lists."""
    return {part.request_id: list(part.block_ids) for work in works for part in work.batch.parts}


def _without_blocks(request: ScheduledRequest) -> ScheduledRequest:
    """All that sampling looks at."""
    return msgspec.structs.replace(request, block_ids=[])
