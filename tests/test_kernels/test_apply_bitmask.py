import pytest
import torch

from forebay_kernels import apply_bitmask, reference
from forebay_kernels.gpu import apply_bitmask as gpu
from tests.test_kernels.comparison import DEVICE, DTYPES, random_tensor


def _bitmask(num_rows: int, vocab_size: int) -> torch.Tensor:
    words = torch.randint(-(2**31), 2**31, (num_rows, -(-vocab_size // 32)), generator=torch.Generator().manual_seed(1))
    return words.int().to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "vocab_size"), [(0, 40), (1, 1), (3, 33), (2, 4200)])
def test_apply_bitmask_equals_its_definition(num_rows: int, vocab_size: int, dtype: torch.dtype) -> None:
    wide = random_tensor(num_rows, vocab_size + 9, dtype=dtype, seed=1)
    expected = wide.clone()
    bitmask = _bitmask(num_rows, vocab_size)
    gpu.apply_bitmask(wide[:, 4:-5], bitmask)
    reference.apply_bitmask(expected[:, 4:-5], bitmask)
    assert torch.equal(wide, expected)


@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
def test_bits_are_counted_from_the_lowest(module: object) -> None:
    logits = torch.zeros(2, 40, device=DEVICE)
    # Token 31 is the sign.
    bitmask = torch.tensor([[-(2**31) | 2, 4], [-1, -1]], dtype=torch.int32, device=DEVICE)
    module.apply_bitmask(logits, bitmask)  # type: ignore[attr-defined]
    assert (logits[0] == 0).nonzero().flatten().tolist() == [1, 31, 34]
    assert logits[1].count_nonzero() == 0


@pytest.mark.parametrize(
    ("bitmask", "message"),
    [
        (torch.zeros(2, 1).int(), r"bitmask: expected shape \[2, 2\], got \[2, 1\]"),
        (torch.zeros(2, 2).long(), "bitmask: expected torch.int32, got torch.int64"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(bitmask: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_bitmask(torch.zeros(2, 40), bitmask)
