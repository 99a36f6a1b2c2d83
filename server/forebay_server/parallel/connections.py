"""How ranks are connected: each with those that share its layers, and with its counterparts in other stages."""

from dataclasses import dataclass

import torch

from forebay_server.config import EngineConfig
from forebay_server.parallel.group import ONE_RANK, RankGroup
from forebay_server.parallel.process_group import ProcessGroup, StageLink
from forebay_server.parallel.stages import WHOLE, Stage, place_of


@dataclass(frozen=True, slots=True)
class Connections:
    """One rank's."""

    group: RankGroup
    stage: Stage
    link: StageLink

    @classmethod
    def of(cls, rank: int, config: EngineConfig) -> "Connections":
        """Those of a rank, not connected yet."""
        size = config.tensor_parallel_size
        stage, tensor_rank = place_of(rank, size, config.pipeline_parallel_size)
        group: RankGroup = ONE_RANK if size == 1 else ProcessGroup(tensor_rank, size)
        return cls(group, stage, StageLink(stage))

    def connect(self, store_path: str, device: torch.device) -> None:
        """Meet the others.

        Args:
            store_path: a file that all ranks can write.
            device: on which the tensors will lie.

        Raises:
            RuntimeError: they do not come.
        """
        if isinstance(self.group, ProcessGroup):
            self.group.connect(store_path, f"stage-{self.stage.index}", device)
        if self.stage.count > 1:
            self.link.connect(store_path, f"link-{self.group.rank}", device)


ALONE = Connections(ONE_RANK, WHOLE, StageLink(WHOLE))
"""Of a model that is not divided."""
