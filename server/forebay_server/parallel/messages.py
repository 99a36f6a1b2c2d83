"""What rank 0 tells the other ranks, and what they answer: msgpack over one socket pair for each rank."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from forebay_server.config import EngineConfig
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest
from forebay_server.errors import ExitCode, StartupError
from forebay_server.weights.quantization import QuantizationOptions


class RankLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rank's process is told on its command line."""

    config: EngineConfig
    rank: int
    socket_fd: int
    """Inherited descriptor of its end of the socket pair."""
    store_fd: int
    """Inherited descriptor of the file through which the ranks find one another."""
    max_model_len: int
    options: QuantizationOptions
    """As rank 0 takes them."""
    available_bytes: int
    """Memory for the weights of one rank."""
    num_threads: int
    parent_pid: int
    log_level: str


class Join(msgspec.Struct, frozen=True, tag=True):
    """All ranks have their weights: connect to one another, and allocate the KV cache."""

    num_blocks: int


class StepPart(msgspec.Struct, frozen=True, array_like=True):
    """A `BatchPart`, whose blocks are told by what changed since the step before."""

    request_id: str
    token_ids: list[int]
    context_len: int
    num_kept_blocks: int
    """The first of the blocks that the request had in the step before; 0 when it was not in it."""
    more_block_ids: list[int]


class MicroBatch(msgspec.Struct, frozen=True, array_like=True):
    """A `FlatBatch`, but for the blocks to be cleared."""

    parts: list[StepPart]
    rows: list[int]
    logit_sizes: list[int]
    """Logits are computed of so many of the rows at once, one after the other; none of the rows after these."""
    requests: list[ScheduledRequest]
    """Only for the rank that samples when that is not rank 0: the requests, in the order of the parts."""


class ComputeStep(msgspec.Struct, frozen=True, tag=True):
    """Compute these, one after the other."""

    new_block_ids: list[int]
    micro_batches: list[MicroBatch]


ToRank = Join | ComputeStep


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The rank has its weights."""

    weight_bytes: int
    num_blocks: int
    """Of the KV cache that it has room for."""


class Joined(msgspec.Struct, frozen=True, tag=True):
    """The rank is connected and has its KV cache: it waits for steps."""


class Found(msgspec.Struct, frozen=True, tag=True):
    """What the rank that samples has found in a micro-batch."""

    tokens: dict[str, SampledToken]
    error: str | None = None
    """Set: no tokens, and why not. The ranks are all at the same place nevertheless."""


class RankFailed(msgspec.Struct, frozen=True, tag=True):
    """The rank ends; the fields of a `StartupError`."""

    exit_code: int
    reason: str
    message: str
    need_bytes: int | None = None
    have_bytes: int | None = None
    suggestion: str | None = None

    @classmethod
    def of(cls, error: StartupError) -> "RankFailed":
        """The message for an error."""
        return cls(error.exit_code, error.reason, error.message, error.need_bytes, error.have_bytes, error.suggestion)

    def error(self, rank: int) -> StartupError:
        """The error that rank 0 ends with."""
        return StartupError(
            ExitCode(self.exit_code),
            self.reason,
            f"rank {rank}: {self.message}",
            need_bytes=self.need_bytes,
            have_bytes=self.have_bytes,
            suggestion=self.suggestion,
        )


FromRank = Loaded | Joined | Found | RankFailed


def encoder() -> msgspec.msgpack.Encoder:
    """For messages either way; a grammar's mask goes as its bytes."""
    return msgspec.msgpack.Encoder(enc_hook=_encode_mask)


def decoder(kind: Any) -> "msgspec.msgpack.Decoder[Any]":
    """For messages of a union."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_mask)


def _encode_mask(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"{type(value).__name__} is in no message")
    return value.tobytes()


def _decode_mask(kind: Any, value: Any) -> Any:
    return np.frombuffer(value, dtype=np.uint32)


class BlockTables:
    """The blocks of the requests of the last step: both ends keep the same, so that only changes are sent."""

    def __init__(self) -> None:
        self._blocks: Mapping[str, list[int]] = {}

    def difference(self, request_id: str, block_ids: list[int]) -> tuple[int, list[int]]:
        """(how many of the first blocks are as in the last step, the others)."""
        before = self._blocks.get(request_id, [])
        if block_ids[: len(before)] == before:
            return len(before), block_ids[len(before) :]
        return 0, block_ids

    def whole(self, request_id: str, num_kept: int, more: list[int]) -> list[int]:
        """The blocks that `difference` told."""
        return [*self._blocks[request_id][:num_kept], *more] if num_kept else more

    def remember(self, blocks: Mapping[str, list[int]]) -> None:
        """Close a step: these were its requests."""
        self._blocks = blocks
