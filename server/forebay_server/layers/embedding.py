"""The table of token embeddings, which may be the output layer (LM head) too."""

import torch
from torch.nn.functional import embedding

from forebay_server.layers.linear import Linear
from forebay_server.layers.weight_forms import dequantize, select_rows


class Embedding(Linear):
    """Looks rows up, in the default dtype of when it was made; as a linear layer it is the tied LM head.

    Args:
        vocab_size: rows.
        hidden_size: size of a row.
    """

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__(hidden_size, vocab_size)
        self.dtype = torch.get_default_dtype()

    def look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens], int64 -> [num_tokens, hidden_size]."""
        table = self.weights[0]
        if isinstance(table, torch.Tensor):
            return embedding(token_ids, table)
        return dequantize(select_rows(table, token_ids)).to(self.dtype)
