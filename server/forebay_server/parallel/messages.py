"""What rank 0 tells the other ranks, and what they answer: msgpack over one socket pair for each rank."""

from collections.abc import Mapping

import msgspec

from forebay_server.config import EngineConfig
from forebay_server.errors import ExitCode, StartupError
from forebay_server.weights.quantization import QuantizationOptions


class RankLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rank's process is told on its command line."""

    config: EngineConfig
    rank: int
    socket_fd: int
    """Inherited descriptor of its end of the socket pair."""
    store_path: str
    """The file through which the ranks find one another."""
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
    kv_dtype: str
    max_model_len: int


class StepPart(msgspec.Struct, frozen=True, array_like=True):
    """A `BatchPart`, whose blocks are told by what changed since the step before."""

    request_id: str
    token_ids: list[int]
    context_len: int
    num_kept_blocks: int
    """The first of the blocks that the request had in the step before; 0 when it was not in it."""
    more_block_ids: list[int]


class ComputeStep(msgspec.Struct, frozen=True, tag=True):
    """A `FlatBatch`."""

    new_block_ids: list[int]
    parts: list[StepPart]
    rows: list[int]


class ComputeLogits(msgspec.Struct, frozen=True, tag=True):
    """Take so many hidden states from rank 0 and gather their logits there."""

    num_rows: int


ToRank = Join | ComputeStep | ComputeLogits


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The rank has its weights."""

    weight_bytes: int


class Joined(msgspec.Struct, frozen=True, tag=True):
    """The rank is connected and has its KV cache: it waits for steps."""


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


FromRank = Loaded | Joined | RankFailed


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
