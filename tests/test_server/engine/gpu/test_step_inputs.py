"""What a step's inputs are, padding included, whatever its parts."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from forebay_server.engine.flat_batch import NUM_SAMPLING_VALUES, BatchPart, FlatBatch
from forebay_server.engine.gpu.block_rows import BlockRows
from forebay_server.engine.gpu.step_inputs import exact_sizes, fill
from forebay_server.engine.gpu.step_layout import ALIGNMENT, HostViews, StepSizes, step_layout

BLOCK_SIZE = 4
POISON = 0xEE


def filled(batch: FlatBatch, num_decodes: int, sizes: StepSizes) -> HostViews:
    """The inputs, in memory that held something else before."""
    layout = step_layout(sizes)
    host = layout.on_host(np.full(layout.num_bytes, POISON, dtype=np.uint8))
    fill(host, batch, num_decodes, BlockRows(), BLOCK_SIZE)
    return host


@st.composite
def batches(draw: st.DrawFn) -> tuple[FlatBatch, int]:
    contexts = sorted(draw(st.lists(st.integers(0, 30), max_size=5)))
    chunks = draw(st.lists(st.tuples(st.integers(2, 9), st.integers(0, 30)), min_size=not contexts, max_size=3))
    parts, block = [], iter(range(1000, 2000))
    for index, (num_new, context) in enumerate([(1, context) for context in contexts] + chunks):
        blocks = [next(block) for _ in range(-(-(context + num_new) // BLOCK_SIZE) + draw(st.integers(0, 2)))]
        parts.append(BatchPart(str(index), list(range(100 * index, 100 * index + num_new)), context, blocks))
    num_tokens = sum(len(part.token_ids) for part in parts)
    rows = draw(st.lists(st.integers(0, num_tokens - 1), max_size=num_tokens, unique=True))
    values = np.random.default_rng(1).random((NUM_SAMPLING_VALUES, len(rows)), dtype=np.float32)
    pending = [(row, draw(st.integers(0, 9))) for row in range(len(contexts)) if draw(st.booleans())]
    return FlatBatch([], parts, rows, values, pending), len(contexts)


@given(batches())
def test_every_token_has_its_position_its_slot_and_its_sequence(drawn: tuple[FlatBatch, int]) -> None:
    batch, num_decodes = drawn
    host = filled(batch, num_decodes, exact_sizes(batch, num_decodes, BLOCK_SIZE))
    row = 0
    for index, part in enumerate(batch.parts):
        for offset, token_id in enumerate(part.token_ids):
            position = part.context_len + offset
            assert host["token_ids"][row] == token_id
            assert host["positions"][row] == position
            slot = part.block_ids[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            assert host["slot_mapping"][row] == slot
            row += 1
        num_read = part.context_len + (index < num_decodes)
        num_blocks = -(-num_read // BLOCK_SIZE)
        assert host["block_table"][index, :num_blocks].tolist() == part.block_ids[:num_blocks]
    prefills = batch.parts[num_decodes:]
    assert host["seq_lens"].tolist() == [part.context_len + 1 for part in batch.parts[:num_decodes]]
    assert host["context_lens"].tolist() == [part.context_len for part in prefills]
    assert np.diff(host["cu_seqlens"]).tolist() == [len(part.token_ids) for part in prefills]
    assert host["cu_seqlens"][0] == 0
    assert host["rows"].tolist() == batch.rows
    assert [tuple(pair) for pair in host["pending"].T.tolist()] == batch.pending
    assert batch.sampling_values is not None
    assert np.array_equal(host["sampling"], batch.sampling_values)


@given(batches(), st.integers(0, 7))
def test_rows_that_pad_a_graph_write_nothing_and_attend_to_nothing(drawn: tuple[FlatBatch, int], more: int) -> None:
    batch, num_decodes = drawn
    if not num_decodes:
        return
    decodes = FlatBatch([], batch.parts[:num_decodes], list(range(num_decodes)))
    exact = exact_sizes(decodes, num_decodes, BLOCK_SIZE)
    size = num_decodes + more
    host = filled(decodes, num_decodes, replace(exact, num_tokens=size, num_decodes=size, num_rows=size))
    assert host["slot_mapping"][num_decodes:].tolist() == [-1] * more
    assert host["seq_lens"][num_decodes:].tolist() == [0] * more
    assert host["token_ids"][num_decodes:].tolist() == [0] * more
    assert host["positions"][num_decodes:].tolist() == [0] * more
    assert host["rows"].tolist() == list(range(size))
    unpadded = filled(decodes, num_decodes, exact)
    for name in ("token_ids", "positions", "slot_mapping", "seq_lens"):
        assert np.array_equal(host[name][:num_decodes], unpadded[name]), name


@given(st.builds(StepSizes, *[st.integers(0, 20)] * 6))
def test_sections_are_aligned_and_apart(sizes: StepSizes) -> None:
    layout = step_layout(sizes)
    sections = sorted(layout.sections.values(), key=lambda section: section.offset)
    assert all(section.offset % ALIGNMENT == 0 for section in sections)
    for section, after in pairwise(sections):
        assert section.offset + section.num_bytes <= after.offset
    assert sections[-1].offset + sections[-1].num_bytes <= layout.num_bytes


def test_the_device_sees_what_the_host_wrote() -> None:
    layout = step_layout(StepSizes(3, 2, 1, 16, 3, 2))
    buffer = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    host, device = layout.on_host(buffer.numpy()), layout.on_device(buffer)
    for number, written in enumerate(host.values(), 1):
        written[...] = number
    for number, (name, read) in enumerate(device.items(), 1):
        assert read.shape == host[name].shape
        assert bool((read == number).all()), name


def test_blocks_are_remembered_while_a_list_grows_and_read_anew_from_another_list() -> None:
    rows = BlockRows()
    blocks = list(range(20))
    rows.start_step()
    assert rows.of("a", blocks).tolist() == blocks
    blocks += range(20, 50)
    rows.start_step()
    assert rows.of("a", blocks).tolist() == blocks
    rows.start_step()
    assert rows.of("a", [7, 8]).tolist() == [7, 8]


def test_blocks_of_requests_that_left_are_forgotten() -> None:
    rows = BlockRows()
    for step in range(3):
        rows.start_step()
        rows.of(str(step), [step])
    assert list(rows._now) == ["2"]
    assert list(rows._before) == ["1"]
