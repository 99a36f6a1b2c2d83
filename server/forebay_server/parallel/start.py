"""Starting and joining the ranks of an engine, around the loading of rank 0's own share."""

from dataclasses import dataclass, replace

import torch

from forebay_server.config import EngineConfig
from forebay_server.engine.kv_cache import KVCacheLayout
from forebay_server.errors import ExitCode, StartupError
from forebay_server.models.model_config import ModelConfig
from forebay_server.parallel.connections import ALONE, Connections
from forebay_server.parallel.messages import Join, Joined, Loaded
from forebay_server.parallel.ranks import Ranks
from forebay_server.parallel.shares import check_shares
from forebay_server.parallel.stages import check_stages
from forebay_server.weights.quantization import QuantizationOptions


@dataclass(frozen=True, slots=True)
class RankZero:
    """Rank 0's end of a divided model; of a model that is not divided there are no other ranks."""

    connections: Connections = ALONE
    others: Ranks | None = None

    def join(self, layout: KVCacheLayout, weight_bytes: int, device: torch.device) -> tuple[KVCacheLayout, int]:
        """Wait until all ranks have their weights, connect to them, and let them allocate their KV caches.

        Args:
            layout: the cache that rank 0 has room for.
            weight_bytes: of rank 0.
            device: of rank 0.

        Returns:
            The cache that every rank has room for, and the bytes of the weights of the fullest rank.

        Raises:
            StartupError: a rank has failed, with its exit code.
        """
        if self.others is None:
            return layout, weight_bytes
        loaded = self.others.wait_for(Loaded)
        layout = replace(layout, num_blocks=min(layout.num_blocks, *(rank.num_blocks for rank in loaded)))
        self.others.send(Join(layout.num_blocks))
        try:
            self.connections.connect(self.others.store_path, device)
        except RuntimeError as error:
            raise self.others.failure(wait_seconds=2.0) or StartupError(
                ExitCode.DEVICE_LOST, "RankLost", f"the ranks cannot connect to one another: {error}"
            ) from error
        self.others.wait_for(Joined)
        return layout, max(weight_bytes, *(rank.weight_bytes for rank in loaded))

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
    *,
    max_model_len: int,
    available_bytes: int,
) -> RankZero:
    """Start the other ranks, which begin to load; CPUs share their threads among the ranks.

    Args:
        config: says how many ranks.
        model_config: which must divide among them.
        device: of rank 0.
        options: which weights are quantized.
        max_model_len: longest request.
        available_bytes: memory for the weights of one rank.

    Raises:
        StartupError: 2 when the model does not divide, or there are too few GPUs.
    """
    num_ranks = config.num_ranks
    if num_ranks == 1:
        return RankZero()
    check_shares(model_config, config.tensor_parallel_size)
    check_stages(model_config.num_layers, config.pipeline_parallel_size)
    if device.type == "cuda" and torch.cuda.device_count() < num_ranks:
        raise StartupError(
            ExitCode.BAD_CONFIGURATION,
            "BadConfiguration",
            f"--tensor-parallel-size {config.tensor_parallel_size} and --pipeline-parallel-size "
            f"{config.pipeline_parallel_size} need {num_ranks} GPUs: there are {torch.cuda.device_count()}",
        )
    if device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // num_ranks))
    ranks = Ranks(config, options, max_model_len, available_bytes, torch.get_num_threads())
    return RankZero(Connections.of(0, config), ranks)
