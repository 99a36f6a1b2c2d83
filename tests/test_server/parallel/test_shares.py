"""How a model is divided: every architecture's logits from 2 and 4 ranks equal those from one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forebay_server.errors import StartupError
from forebay_server.layers.weight_cut import Cut
from forebay_server.models.hugging_face_config import config_from_hugging_face
from forebay_server.models.model_config import ModelConfig
from forebay_server.parallel.shares import check_shares, head_shares, vocabulary_share
from tests.test_server.models.forward import load, logits_of
from tests.test_server.models.tiny_llama import tiny_config
from tests.test_server.models.tiny_models import ARCHITECTURES, save_tiny
from tests.test_server.parallel.ranks_in_threads import ThreadGroup, on_all_ranks

PROMPT = torch.randint(3, 127, (21,), generator=torch.Generator().manual_seed(4)).tolist()


def split_logits(folder: Path, size: int) -> torch.Tensor:
    """The logits that rank 0 gathers."""

    def work(group: ThreadGroup) -> torch.Tensor:
        return logits_of(load(folder, group=group), PROMPT, [13, 1, 1])

    return on_all_ranks(size, work)[0]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_of_several_ranks_equal_those_of_one(tmp_path: Path, name: str, size: int) -> None:
    """With 2 key-value heads, 4 ranks hold each twice; a vocabulary of 127 leaves the last rank padding."""
    folder, _ = save_tiny(tmp_path, name, vocab_size=127)
    expected = logits_of(load(folder), PROMPT, [13, 1, 1])
    assert (split_logits(folder, size) - expected).abs().max() <= 1e-4


def config(**changes: object) -> ModelConfig:
    return replace(config_from_hugging_face(tiny_config(), "config.json"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({}, 3, "--tensor-parallel-size 3: 4 attention heads cannot be divided by it"),
        ({"num_heads": 12, "num_kv_heads": 4, "intermediate_size": 96}, 6, "4 key-value heads can neither"),
        ({"intermediate_size": 99}, 2, "99 rows of the feed-forward part"),
    ],
)
def test_sizes_that_cannot_be_divided_are_refused(changes: dict[str, object], size: int, message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        check_shares(config(**changes), size)
    assert caught.value.exit_code == 2


def test_each_query_head_meets_its_key_head_on_every_rank() -> None:
    for num_heads, num_kv_heads, size in ((8, 8, 4), (8, 2, 2), (8, 2, 4), (8, 1, 8), (32, 4, 8), (16, 2, 16)):
        one = config(num_heads=num_heads, num_kv_heads=num_kv_heads)
        check_shares(replace(one, intermediate_size=96 * size), size)
        seen = []
        for rank in range(size):
            queries, kv = head_shares(one, rank, size)
            assert queries.size % kv.size == 0
            for local, head in enumerate(range(queries.start, queries.stop)):
                seen.append(head)
                assert kv.start + local // (queries.size // kv.size) == head // (num_heads // num_kv_heads)
        assert seen == list(range(num_heads))


@pytest.mark.parametrize(("vocab_size", "size"), [(128, 4), (127, 4), (5, 4), (1, 2)])
def test_every_row_of_the_vocabulary_is_held_once(vocab_size: int, size: int) -> None:
    shares = [vocabulary_share(vocab_size, rank, size) for rank in range(size)]
    assert [row for share in shares for row in range(share.start, share.stop)] == list(range(vocab_size))
    assert max(share.size for share in shares) == -(-vocab_size // size)


def test_a_cut_takes_ranges_of_rows_and_columns() -> None:
    matrix = torch.arange(24.0).view(6, 4)
    rows = Cut(0, ((0, 1), (3, 5)))
    assert torch.equal(rows.of_tensor(matrix), matrix[[0, 3, 4]])
    assert rows.shape((6, 4)) == (3, 4)
    assert torch.equal(Cut(1, ((1, 3),)).of_tensor(matrix), matrix[:, 1:3])
