"""Which part of a model each rank holds: pure arithmetic on sizes. No torch here.

Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053: the first product of a pair is cut by its outputs (rows of the
weight), the second by its inputs (columns), so that a pair needs one sum over ranks.
"""

from dataclasses import dataclass

from forebay_server.errors import ExitCode, StartupError
from forebay_server.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a dimension: start to stop of full."""

    full: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How much the rank holds."""
        return self.stop - self.start


def even_share(full: int, rank: int, num_ranks: int) -> Share:
    """The part of a dimension that num_ranks divides."""
    size = full // num_ranks
    return Share(full, rank * size, (rank + 1) * size)


def head_shares(config: ModelConfig, rank: int, num_ranks: int) -> tuple[Share, Share]:
    """Query heads and key-value heads of a rank. With more ranks than key-value heads, several ranks hold the same."""
    queries = even_share(config.num_heads, rank, num_ranks)
    if num_ranks <= config.num_kv_heads:
        return queries, even_share(config.num_kv_heads, rank, num_ranks)
    head = rank * config.num_kv_heads // num_ranks
    return queries, Share(config.num_kv_heads, head, head + 1)


def vocabulary_share(vocab_size: int, rank: int, num_ranks: int) -> Share:
    """Rows of the embedding: ceil(vocab_size / num_ranks) each, fewer on the last ranks."""
    size = -(-vocab_size // num_ranks)
    return Share(vocab_size, min(rank * size, vocab_size), min((rank + 1) * size, vocab_size))


def check_shares(config: ModelConfig, num_ranks: int) -> None:
    """Refuse a number of ranks that does not divide the model.

    Raises:
        StartupError: 2, naming what cannot be divided and the numbers that can.
    """
    sizes = {"attention heads": config.num_heads}
    if config.moe is None or not all(config.moe.is_moe_layer):
        sizes["rows of the feed-forward part"] = config.intermediate_size
    if config.moe is not None:
        sizes["rows of an expert"] = config.moe.intermediate_size
        if config.moe.shared_intermediate_size is not None:
            sizes["rows of the shared expert"] = config.moe.shared_intermediate_size
    for what, size in sizes.items():
        if size % num_ranks:
            raise _refusal(config, num_ranks, f"{size} {what} cannot be divided by it")
    if config.num_kv_heads % num_ranks and num_ranks % config.num_kv_heads:
        raise _refusal(config, num_ranks, f"{config.num_kv_heads} key-value heads can neither be divided nor repeated")


def _refusal(config: ModelConfig, num_ranks: int, why: str) -> StartupError:
    fitting = [str(size) for size in (1, 2, 4, 8, 16) if size < num_ranks and config.num_heads % size == 0]
    return StartupError(
        ExitCode.BAD_CONFIGURATION,
        "BadConfiguration",
        f"--tensor-parallel-size {num_ranks}: {why}",
        suggestion=f"use --tensor-parallel-size {fitting[-1]}",
    )
