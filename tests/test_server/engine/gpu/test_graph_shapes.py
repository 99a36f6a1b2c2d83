"""Which graph a decode step uses, whatever its size."""

from hypothesis import given
from hypothesis import strategies as st

from forebay_server.engine.gpu.graph_shapes import MAX_GRAPH_SEQS, MAX_GRAPHS, graph_shape, padded_num_seqs


def test_sizes_double_and_then_grow_by_64() -> None:
    assert sorted({padded_num_seqs(count) for count in range(1, 300)}) == [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320]


@given(st.integers(1, MAX_GRAPH_SEQS))
def test_a_batch_is_padded_to_less_than_twice_its_size(num_seqs: int) -> None:
    padded = padded_num_seqs(num_seqs)
    assert num_seqs <= padded < 2 * num_seqs + (num_seqs == 1)
    assert padded_num_seqs(padded) == padded
    assert padded <= MAX_GRAPH_SEQS


@given(st.integers(1, 200_000), st.data())
def test_a_graph_holds_the_step_and_no_longer_sequence_than_can_be(max_model_len: int, data: st.DataObject) -> None:
    longest = data.draw(st.integers(1, max_model_len))
    num_seqs = data.draw(st.integers(1, MAX_GRAPH_SEQS))
    shape = graph_shape(num_seqs, longest, max_model_len)
    assert shape is not None
    assert shape.num_seqs >= num_seqs
    assert longest <= shape.max_seq_len <= max_model_len


def test_graphs_are_few_and_large_batches_have_none() -> None:
    shapes = {graph_shape(size, longest, 131072) for size in range(1, 257) for longest in range(1, 131073, 97)}
    assert len(shapes) == 30 <= MAX_GRAPHS
    assert graph_shape(MAX_GRAPH_SEQS + 1, 1, 2048) is None
