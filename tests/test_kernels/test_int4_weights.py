"""Repacking: checkpoints that are written here number by number, as their formats say, mean the same afterwards."""

import pytest
import torch

from forebay_kernels.int4_weights import (
    Int4Weight,
    chunk_of,
    from_awq,
    from_compressed_tensors,
    from_gptq,
    pack_int4,
    unpack_int4,
)

OUT, IN, GROUP = 16, 128, 32


def _random() -> tuple[list[list[int]], list[list[int]], torch.Tensor]:
    """Numbers [OUT][IN], zeros [OUT][IN / GROUP] and scales [OUT, IN / GROUP]."""
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randint(16, (OUT, IN), generator=generator).tolist()
    zeros = torch.randint(1, 16, (OUT, IN // GROUP), generator=generator).tolist()
    return numbers, zeros, torch.rand(OUT, IN // GROUP, generator=generator)


def _word(numbers: list[int]) -> int:
    """Eight numbers in a signed word, the first lowest."""
    word = sum(number << 4 * place for place, number in enumerate(numbers))
    return word - 2**32 if word >= 2**31 else word


def _dense(numbers: list[list[int]], zeros: list[list[int]], scales: torch.Tensor, groups: list[int]) -> torch.Tensor:
    rows = [
        [(numbers[n][k] - zeros[n][groups[k]]) * float(scales[n, groups[k]]) for k in range(IN)] for n in range(OUT)
    ]
    return torch.tensor(rows)


def _meaning(weight: Int4Weight) -> torch.Tensor:
    numbers = unpack_int4(weight.packed, GROUP).view(OUT, -1, GROUP).float()
    zeros = torch.full_like(weight.scales, 8) if weight.zeros is None else weight.zeros.float()
    dense = ((numbers - zeros[:, :, None]) * weight.scales[:, :, None]).flatten(1)
    if weight.permutation is None:
        return dense
    in_order = torch.empty_like(dense)
    in_order[:, weight.permutation.long()] = dense
    return in_order


@pytest.mark.parametrize("has_order", [False, True])
@pytest.mark.parametrize("less_one", [False, True])
def test_gptq(less_one: bool, has_order: bool) -> None:
    numbers, zeros, scales = _random()
    groups = [k * 7 % IN // GROUP if has_order else k // GROUP for k in range(IN)]
    qweight = [[_word([numbers[n][8 * r + i] for i in range(8)]) for n in range(OUT)] for r in range(IN // 8)]
    stored = [[zeros[n][g] - less_one for n in range(OUT)] for g in range(IN // GROUP)]
    qzeros = [[_word(row[8 * c : 8 * c + 8]) for c in range(OUT // 8)] for row in stored]
    weight = from_gptq(
        torch.tensor(qweight, dtype=torch.int32),
        torch.tensor(qzeros, dtype=torch.int32),
        scales.T.contiguous(),
        torch.tensor(groups, dtype=torch.int32),
        zeros_are_less_one=less_one,
    )
    assert (weight.permutation is not None) == has_order
    torch.testing.assert_close(_meaning(weight), _dense(numbers, zeros, scales, groups))


def test_awq() -> None:
    numbers, zeros, scales = _random()
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def words(columns: list[int]) -> list[int]:
        return [_word([columns[8 * c + i] for i in order]) for c in range(OUT // 8)]

    weight = from_awq(
        torch.tensor([words([numbers[n][k] for n in range(OUT)]) for k in range(IN)], dtype=torch.int32),
        torch.tensor([words([zeros[n][g] for n in range(OUT)]) for g in range(IN // GROUP)], dtype=torch.int32),
        scales.T.contiguous(),
    )
    torch.testing.assert_close(_meaning(weight), _dense(numbers, zeros, scales, [k // GROUP for k in range(IN)]))


@pytest.mark.parametrize("is_symmetric", [False, True])
def test_compressed_tensors(is_symmetric: bool) -> None:
    numbers, zeros, scales = _random()
    if is_symmetric:
        zeros = [[8] * (IN // GROUP)] * OUT
    packed = [[_word(row[8 * c : 8 * c + 8]) for c in range(IN // 8)] for row in numbers]
    zero_point = [[_word([zeros[8 * r + i][g] for i in range(8)]) for g in range(IN // GROUP)] for r in range(OUT // 8)]
    weight = from_compressed_tensors(
        torch.tensor(packed, dtype=torch.int32),
        scales,
        None if is_symmetric else torch.tensor(zero_point, dtype=torch.int32),
        None,
    )
    torch.testing.assert_close(_meaning(weight), _dense(numbers, zeros, scales, [k // GROUP for k in range(IN)]))


def test_compressed_tensors_in_another_order() -> None:
    numbers, _, scales = _random()
    zeros = [[8] * (IN // GROUP)] * OUT
    groups = [k * 5 % IN // GROUP for k in range(IN)]
    packed = [[_word(row[8 * c : 8 * c + 8]) for c in range(IN // 8)] for row in numbers]
    weight = from_compressed_tensors(torch.tensor(packed, dtype=torch.int32), scales, None, torch.tensor(groups))
    torch.testing.assert_close(_meaning(weight), _dense(numbers, zeros, scales, groups))


@pytest.mark.parametrize(("group_size", "chunk"), [(32, 32), (64, 64), (128, 128), (256, 128)])
def test_packing_is_undone_and_halves_a_chunk(group_size: int, chunk: int) -> None:
    numbers = torch.randint(16, (3, 256), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    packed = pack_int4(numbers, group_size)
    assert torch.equal(unpack_int4(packed, group_size), numbers)
    assert int(packed[2, 1]) == int(numbers[2, 1]) + 16 * int(numbers[2, 1 + chunk // 2])
    assert chunk_of(group_size) == chunk


@pytest.mark.parametrize("group_size", [0, 16, 96, 192])
def test_another_group_size_is_refused(group_size: int) -> None:
    with pytest.raises(ValueError, match=f"expected 32, 64 or a multiple of 128, got {group_size}"):
        chunk_of(group_size)
