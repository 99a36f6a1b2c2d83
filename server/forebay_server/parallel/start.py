"""Starting and joining the ranks of an engine, around the loading of rank 0's own share."""

from dataclasses import dataclass

import torch

from forebay_server.config import EngineConfig
from forebay_server.engine.kv_cache import KVCacheLayout
from forebay_server.errors import ExitCode, StartupError
from forebay_server.models.model_config import ModelConfig
from forebay_server.parallel.group import ONE_RANK, RankGroup
from forebay_server.parallel.messages import Join, Joined, Loaded
from forebay_server.parallel.process_group import ProcessGroup
from forebay_server.parallel.ranks import Ranks
from forebay_server.parallel.shares import check_shares
from forebay_server.weights.quantization import QuantizationOptions


@dataclass(frozen=True, slots=True)
class RankZero:
    """Rank 0's end of a divided model; of a model that is not divided there are no other ranks."""

    group: RankGroup = ONE_RANK
    others: Ranks | None = None

    def join(self, layout: KVCacheLayout, max_model_len: int, device: torch.device) -> None:
        """Wait until all ranks have their weights, connect to them, and let them allocate their KV caches.

        Raises:
            StartupError: a rank has failed, with its exit code.
        """
        if self.others is None or not isinstance(self.group, ProcessGroup):
            return
        self.others.wait_for(Loaded)
        self.others.send(Join(layout.num_blocks, str(layout.dtype).removeprefix("torch."), max_model_len))
        try:
            self.group.connect(self.others.store_path, device)
        except RuntimeError as error:
            raise self.others.failure(wait_seconds=2.0) or StartupError(
                ExitCode.DEVICE_LOST, "RankLost", f"the ranks cannot connect to one another: {error}"
            ) from error
        self.others.wait_for(Joined)

    def check(self) -> None:
        """Raise when a rank has ended.

        Raises:
            StartupError: with the rank's exit code.
        """
        if self.others is not None:
            self.others.check()

    def close(self) -> None:
        """End the other ranks."""
        if self.others is not None:
            self.others.close()


def start_ranks(
    config: EngineConfig,
    model_config: ModelConfig,
    device: torch.device,
    options: QuantizationOptions,
    available_bytes: int,
) -> RankZero:
    """Start the other ranks, which begin to load; CPUs share their threads among the ranks.

    Args:
        config: says how many ranks.
        model_config: which must divide among them.
        device: of rank 0.
        options: which weights are quantized.
        available_bytes: memory for the weights of one rank.

    Raises:
        StartupError: 2 when the model does not divide, or there are too few GPUs.
    """
    num_ranks = config.tensor_parallel_size
    if num_ranks == 1:
        return RankZero()
    check_shares(model_config, num_ranks)
    if device.type == "cuda" and torch.cuda.device_count() < num_ranks:
        raise StartupError(
            ExitCode.BAD_CONFIGURATION,
            "BadConfiguration",
            f"--tensor-parallel-size {num_ranks}: there are {torch.cuda.device_count()} GPUs",
        )
    if device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // num_ranks))
    return RankZero(ProcessGroup(0, num_ranks), Ranks(config, options, available_bytes, torch.get_num_threads()))
