import pytest
import torch

from forebay_kernels import gather_kv_blocks, reference
from forebay_kernels.gpu import gather_kv_blocks as gpu
from tests.test_kernels.comparison import DEVICE
from tests.test_kernels.paged import paged_cache

CACHE_DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn)


def _blocks(*blocks: int) -> torch.Tensor:
    return torch.tensor(blocks, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
@pytest.mark.parametrize("dtype", CACHE_DTYPES)
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 6), (3, 80)])
def test_blocks_become_copies_and_all_others_stay(
    num_kv_heads: int, head_dim: int, dtype: torch.dtype, module: object
) -> None:
    cache = paged_cache([40, 30], num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype, block_size=8).arguments
    before = {name: tensor.clone() for name, tensor in cache.items()}
    # One source may become several blocks.
    sources, targets = [0, 3, 0], [1, 9, 5]
    run = module.gather_kv_blocks  # type: ignore[attr-defined]
    run(**cache, source_blocks=_blocks(*sources), target_blocks=_blocks(*targets))
    for name, tensor in cache.items():
        for block in range(len(tensor)):
            expected = before[name][sources[targets.index(block)] if block in targets else block]
            assert torch.equal(tensor[block].view(torch.uint8), expected.view(torch.uint8))


def test_no_copies_change_nothing() -> None:
    cache = paged_cache([40], num_kv_heads=1, head_dim=6, dtype=torch.float32).arguments
    before = cache["key_cache"].clone()
    gpu.gather_kv_blocks(**cache, source_blocks=_blocks(), target_blocks=_blocks())
    assert torch.equal(cache["key_cache"], before)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key_cache": torch.ones(4, 2, 8)}, r"key_cache: expected shape .*, got \[4, 2, 8\]"),
        ({"value_cache": torch.ones(3, 2, 1, 8)}, r"value_cache: expected shape \[4, 2, 1, 8\], got \[3, 2, 1, 8\]"),
        ({"target_blocks": torch.zeros(2).int()}, r"target_blocks: expected shape \[1\], got \[2\]"),
        ({"source_blocks": torch.zeros(1).long()}, "source_blocks: expected torch.int32, got torch.int64"),
    ],
)
def test_arguments_that_do_not_fit_are_named(changed: dict[str, torch.Tensor], message: str) -> None:
    arguments = {
        "key_cache": torch.ones(4, 2, 1, 8),
        "value_cache": torch.ones(4, 2, 1, 8),
        "source_blocks": torch.zeros(1, dtype=torch.int32),
        "target_blocks": torch.ones(1, dtype=torch.int32),
    }
    gather_kv_blocks(**arguments)
    with pytest.raises(ValueError, match=message):
        gather_kv_blocks(**(arguments | changed))
