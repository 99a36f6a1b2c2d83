"""The feed-forward part that picks some of many experts for every token (Shazeer et al. 2017, arXiv:1701.06538)."""

import torch
from torch import nn

from forebay_kernels.reference.moe import fused_moe
from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.linear import Linear, Slots, TensorSlot
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
        self.moe, self.part_names = config.moe, part_names
        hidden_size, moe = config.hidden_size, config.moe
        self._group, self._share = group, even_share(moe.intermediate_size, group.rank, group.size)
        size = self._share.size
        self.router = Linear(hidden_size, moe.num_experts)
        self.router.is_quantizable = False
        self.gate_up = nn.Parameter(torch.empty(moe.num_experts, 2 * size, hidden_size), requires_grad=False)
        self.down = nn.Parameter(torch.empty(moe.num_experts, hidden_size, size), requires_grad=False)
        shared = moe.shared_intermediate_size
        self.shared_expert = None if shared is None else GatedMLP(hidden_size, shared, group=group, is_summed=False)
        self.shared_expert_gate = None if shared is None else Linear(hidden_size, 1)
        if self.shared_expert_gate is not None:
            self.shared_expert_gate.is_quantizable = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        probabilities = self.router(x).softmax(-1, dtype=torch.float32)  # [num_tokens, num_experts]
        weights, experts = probabilities.topk(self.moe.num_experts_per_token, dim=-1)
        if self.moe.is_normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        output = fused_moe(x, self.gate_up, self.down, experts, weights)
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            output = output + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return self._group.all_reduce(output)

    def slots(self, prefix: str) -> Slots:
        """Where each weight of the checkpoint goes; it holds every expert by itself."""
        slots = self.router.slots(f"{prefix}.gate")
        hidden_size, full, part = self.down.shape[1], self._share.full, ((self._share.start, self._share.stop),)
        for expert in range(self.moe.num_experts):
            name = f"{prefix}.experts.{expert}"
            gate, up = self.gate_up.data[expert].chunk(2)
            down = self.down.data[expert]
            slots[f"{name}.{self.part_names['gate']}.weight"] = TensorSlot(gate, (full, hidden_size), Cut(0, part))
            slots[f"{name}.{self.part_names['up']}.weight"] = TensorSlot(up, (full, hidden_size), Cut(0, part))
            slots[f"{name}.{self.part_names['down']}.weight"] = TensorSlot(down, (hidden_size, full), Cut(1, part))
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            slots |= self.shared_expert.slots(f"{prefix}.shared_expert")
            slots |= self.shared_expert_gate.slots(f"{prefix}.shared_expert_gate")
        return slots
