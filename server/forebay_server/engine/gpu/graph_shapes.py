"""Which CUDA graph a decode step uses: few sizes, to which batches are padded, so that few must be kept. Pure."""

from dataclasses import dataclass

MAX_GRAPH_SEQS = 512
"""Larger batches keep the GPU busy for so long that starting kernels one by one costs nothing."""
MAX_GRAPHS = 64
"""Graphs that are kept; steps that would need another one run without. 256 sequences of any length need 30."""
_DOUBLED_TO = 64
"""Sizes double up to here and are multiples of it from here on: 129 sequences are padded to 192, not to 256."""
_LENGTHS = (512, 2048)
"""A graph starts programs for sequences of one of these lengths, or of the longest request: of those that have nothing
to do each costs little, but a graph for 32,768 tokens would start 16 times as many as one for 512 needs."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    """What a graph was captured for."""

    num_seqs: int
    max_seq_len: int


def padded_num_seqs(num_seqs: int) -> int:
    """The size to which a batch is padded: 1, 2, 4, ... 64, 128, 192, ...; at least num_seqs, which is at least 1."""
    if num_seqs >= _DOUBLED_TO:
        return -(-num_seqs // _DOUBLED_TO) * _DOUBLED_TO
    return 1 << (num_seqs - 1).bit_length()


def graph_shape(num_seqs: int, longest: int, max_model_len: int) -> GraphShape | None:
    """The graph for a decode step; None: none is kept for so many sequences.

    Args:
        num_seqs: in the step, at least 1.
        longest: tokens of the longest sequence, the new one included.
        max_model_len: of any request; at least longest.
    """
    if num_seqs > MAX_GRAPH_SEQS:
        return None
    length = next((length for length in _LENGTHS if longest <= length < max_model_len), max_model_len)
    return GraphShape(padded_num_seqs(num_seqs), length)
