"""The feed-forward part that picks some of many experts for every token (Shazeer et al. 2017, arXiv:1701.06538)."""

import torch
from torch import nn

from forebay_kernels import fused_moe, silu_and_mul
from forebay_kernels.dispatch import runs_triton
from forebay_kernels.reference.moe import sum_of_experts
from forebay_server.layers.experts_linear import ExpertsLinear
from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.linear import Linear, Slots
from forebay_server.layers.weight_cut import Cut
from forebay_server.models.model_config import ModelConfig
from forebay_server.parallel.group import ONE_RANK, RankGroup
from forebay_server.parallel.shares import even_share

EXPERT_PARTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


class MixtureOfExperts(nn.Module):
    """The sum of a token's experts, weighted by the router, and of the shared expert where there is one.

    Args:
        config: sizes and rules.
        part_names: how the checkpoint calls the gate, up and down projection of an expert.
        group: the ranks, each of which has a part of every expert.
    """

    def __init__(
        self, config: ModelConfig, part_names: dict[str, str] = EXPERT_PARTS, group: RankGroup = ONE_RANK
    ) -> None:
        super().__init__()
        if config.moe is None:
            raise ValueError(f"{config.architecture} has no experts")
        self.moe = config.moe
        hidden_size, moe = config.hidden_size, config.moe
        self._group, share = group, even_share(moe.intermediate_size, group.rank, group.size)
        rows, columns = Cut(0, ((share.start, share.stop),)), Cut(1, ((share.start, share.stop),))
        gate, up, down = (part_names[part] for part in ("gate", "up", "down"))
        self.router = Linear(hidden_size, moe.num_experts)
        self.router.is_quantizable = False
        self.gate_up = ExpertsLinear(moe.num_experts, (gate, up), (share.full, hidden_size), rows)
        self.down = ExpertsLinear(moe.num_experts, (down,), (hidden_size, share.full), columns)
        shared = moe.shared_intermediate_size
        self.shared_expert = None if shared is None else GatedMLP(hidden_size, shared, group=group, is_summed=False)
        self.shared_expert_gate = None if shared is None else Linear(hidden_size, 1)
        if self.shared_expert_gate is not None:
            self.shared_expert_gate.is_quantizable = False

    @property
    def reader(self) -> Linear | None:
        """The router reads x as it is, the experts do, too."""
        return None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        probabilities = self.router(x).softmax(-1, dtype=torch.float32)  # [num_tokens, num_experts]
        weights, experts = probabilities.topk(self.moe.num_experts_per_token, dim=-1)
        if self.moe.is_normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        output = self._experts(x, experts, weights)
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            output = output + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return self._group.all_reduce(output)

    def _experts(self, x: torch.Tensor, expert_ids: torch.Tensor, expert_weights: torch.Tensor) -> torch.Tensor:
        """One kernel for all experts on GPUs; on CPUs, and for forms that it does not know, one after the other."""
        gate_up, down = self.gate_up.stacked(), self.down.stacked()
        if not runs_triton(x.device.type) or gate_up is None or down is None or not gate_up.is_like(down):
            return sum_of_experts(x, expert_ids, expert_weights, self._one_expert)
        return fused_moe(
            x, gate_up.values, down.values, expert_ids, expert_weights, gate_up.scales, down.scales,
            gate_up.quantizes_input, gate_up.zeros, down.zeros,
        )  # fmt: skip

    @property
    def is_fused(self) -> bool:
        """Whether a GPU computes all experts by itself, without the host looking which of them are wanted."""
        gate_up, down = self.gate_up.stacked(), self.down.stacked()
        return gate_up is not None and down is not None and gate_up.is_like(down)

    def _one_expert(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        return self.down.of_expert(silu_and_mul(self.gate_up.of_expert(x, expert)), expert)

    def slots(self, prefix: str) -> Slots:
        """Where each weight of the checkpoint goes; it holds every expert by itself."""
        slots = self.router.slots(f"{prefix}.gate")
        slots |= self.gate_up.slots(f"{prefix}.experts") | self.down.slots(f"{prefix}.experts")
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            slots |= self.shared_expert.slots(f"{prefix}.shared_expert")
            slots |= self.shared_expert_gate.slots(f"{prefix}.shared_expert_gate")
        return slots
