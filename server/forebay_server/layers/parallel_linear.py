"""Linear layers of which each rank holds a part; with one rank they are ordinary ones."""

from collections.abc import Mapping

import torch

from forebay_server.layers.embedding import Embedding
from forebay_server.layers.linear import Linear, Slots, TensorSlot, WeightSlot
from forebay_server.layers.quantized_matmul import Rows, multiply
from forebay_server.layers.weight_cut import Cut
from forebay_server.parallel.group import RankGroup
from forebay_server.parallel.shares import Share, vocabulary_share


class ColumnParallelLinear(Linear):
    """Several linear layers with the same input as one product (q, k, v; gate, up); a rank holds a share of each.

    Args:
        in_features: size of the rows of x, the same on every rank.
        parts: a rank's share of the outputs of each part, by its name in the checkpoint, in the order of the output.
        bias: whether every part has one.
        packed_name: how the checkpoint calls all parts as one matrix; None: it holds each by itself.
    """

    def __init__(
        self, in_features: int, parts: Mapping[str, Share], bias: bool = False, packed_name: str | None = None
    ) -> None:
        super().__init__(in_features, sum(share.size for share in parts.values()), bias)
        self._shares, self._packed_name = dict(parts), packed_name
        if packed_name is None:
            self.parts = {name: share.size for name, share in parts.items()}

    def slots(self, prefix: str) -> Slots:
        """See `Linear.slots`; `prefix` is the parent of the parts, or empty."""
        if self._packed_name is not None:
            ranges, full = [], 0
            for share in self._shares.values():
                ranges.append((full + share.start, full + share.stop))
                full += share.full
            return self._slots_of(_joined(prefix, self._packed_name), "", full, Cut(0, tuple(ranges)), 0)
        slots: Slots = {}
        first_row = 0
        for name, share in self._shares.items():
            cut = Cut(0, ((share.start, share.stop),))
            slots |= self._slots_of(_joined(prefix, name), name, share.full, cut, first_row)
            first_row += share.size
        return slots

    def _slots_of(self, name: str, part: str, full: int, cut: Cut, first_row: int) -> Slots:
        slots: Slots = {f"{name}.weight": WeightSlot(self, part, (full, self.in_features), cut)}
        if self.bias is not None:
            rows = self.bias.data[first_row : first_row + cut.size]
            slots[f"{name}.bias"] = TensorSlot(rows, (full,), cut)
        return slots


class RowParallelLinear(Linear):
    """y = x Wᵀ + b, where each rank has a part of x and of the columns of W; the parts are summed over the ranks.

    Args:
        in_features: a rank's share of the rows of x.
        out_features: size of the rows of y.
        bias: whether there is a b.
        group: the ranks.
        is_summed: whether the output is summed here; the caller must do it otherwise, and there may be no b.
    """

    def __init__(
        self,
        in_features: Share,
        out_features: int,
        bias: bool,
        group: RankGroup,
        *,
        is_summed: bool = True,
    ) -> None:
        super().__init__(in_features.size, out_features, bias)
        self._share, self._group = in_features, group
        self._is_split = is_summed and group.size > 1

    def forward(self, x: Rows) -> torch.Tensor:
        """[num_tokens, in_features of the rank] -> [num_tokens, out_features]."""
        if not self._is_split:
            return super().forward(x)
        output = self._group.all_reduce(multiply(x, self.weights[0], None, quantizes_input=self.quantizes_input))
        return output if self.bias is None else output + self.bias

    def slots(self, prefix: str) -> Slots:
        """See `Linear.slots`."""
        cut = Cut(1, ((self._share.start, self._share.stop),))
        slots = super().slots(prefix)
        slots[f"{prefix}.weight"] = WeightSlot(self, "", (self.out_features, self._share.full), cut)
        return slots


class VocabParallelEmbedding(Embedding):
    """The table of token embeddings, of which each rank holds some rows; as a linear layer it is the tied LM head."""

    def __init__(self, vocab_size: int, hidden_size: int, group: RankGroup) -> None:
        self._share, self._group = vocabulary_share(vocab_size, group.rank, group.size), group
        super().__init__(self._share.size, hidden_size)

    def look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens], int64 -> [num_tokens, hidden_size]: one rank has the row, the others add zeros."""
        if self._group.size == 1:
            return super().look_up(token_ids)
        rows = token_ids - self._share.start
        is_here = (rows >= 0) & (rows < self._share.size)
        if not self._share.size:
            return self._group.all_reduce(torch.zeros(len(token_ids), self.in_features, dtype=self.dtype))
        found = super().look_up(rows.clamp(0, self._share.size - 1))
        return self._group.all_reduce(found.masked_fill(~is_here.unsqueeze(1), 0))

    def slots(self, prefix: str) -> Slots:
        """See `Linear.slots`."""
        cut = Cut(0, ((self._share.start, self._share.stop),))
        return {f"{prefix}.weight": WeightSlot(self, "", (self._share.full, self.in_features), cut)}


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
