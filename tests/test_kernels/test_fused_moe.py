from typing import Any

import pytest
import torch

import forebay_kernels
from forebay_kernels import reference
from forebay_kernels.gpu import fused_moe as gpu
from forebay_kernels.gpu.fused_moe import sort_launch, weighted_sum_launch
from forebay_kernels.gpu.grouped_matmul import grouped_matmul_launch, num_tiles_of
from forebay_kernels.gpu.matmul_tiles import tiles_of
from forebay_kernels.int4_weights import pack_int4
from forebay_kernels.reference.quantization import quantize_rows
from forebay_kernels.targets import TARGETS
from tests.test_kernels.comparison import DEVICE, DTYPES, random_tensor

FP8 = torch.float8_e4m3fn
# Two products in a row, each rounded to the dtype, and the activation between: the interpreter cuts bfloat16 off.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-4}
# (num_tokens, hidden_size, intermediate_size, num_experts, experts of a token)
SHAPES = ((0, 8, 4, 3, 2), (1, 1, 1, 1, 1), (5, 33, 17, 5, 2), (3, 64, 9, 7, 3), (50, 16, 8, 3, 2), (2, 200, 100, 9, 8))


def _expert_ids(num_tokens: int, num_experts: int, num_choices: int, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(num_experts, generator=generator)[:num_choices] for _ in range(num_tokens)]
    return torch.stack(rows).to(DEVICE) if rows else torch.empty(0, num_choices, dtype=torch.int64, device=DEVICE)


def _arguments(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype = torch.float32,
    *,
    eight_bits: torch.dtype | None = None,
    by_block: bool = False,
    quantizes_input: bool = False,
) -> dict[str, Any]:
    num_tokens, hidden_size, intermediate_size, num_experts, num_choices = shape
    arguments: dict[str, Any] = {
        # A slice of a wider tensor.
        "x": random_tensor(num_tokens, hidden_size + 8, dtype=dtype, seed=1)[:, 5:-3],
        "expert_ids": _expert_ids(num_tokens, num_experts, num_choices),
        "expert_weights": random_tensor(num_tokens, num_choices, dtype=torch.float32, seed=4).abs(),
        "quantizes_input": quantizes_input,
    }
    rows, columns = {"gate_up": 2 * intermediate_size, "down": hidden_size}, {"gate_up": hidden_size}
    for seed, (name, out_features) in enumerate(rows.items(), start=5):
        in_features = columns.get(name, intermediate_size)
        weight = random_tensor(
            num_experts, out_features, in_features, dtype=torch.float32, seed=seed, scale=in_features**-0.5
        )
        if eight_bits is None:
            arguments[name] = weight.to(dtype)
            continue
        arguments[name], scales = quantize_rows(weight, eight_bits)
        if by_block:
            blocks = (num_experts, -(-out_features // 128), -(-in_features // 128))
            scales = random_tensor(*blocks, dtype=torch.float32, seed=seed + 2).abs() * in_features**-0.5 / 448
        # Every channel of every expert has a scale of its own, none like its neighbour's.
        arguments[f"{name}_scales"] = scales * (1 + torch.arange(scales.numel(), device=DEVICE).view_as(scales) % 5)
    return arguments


def _assert_equal(arguments: dict[str, Any], output: torch.Tensor | None = None) -> None:
    output = gpu.fused_moe(**arguments) if output is None else output
    expected = reference.fused_moe(**arguments)
    assert output.dtype == expected.dtype
    assert output.is_contiguous()
    tolerance = TOLERANCES[output.dtype]
    largest = float(expected.float().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_moe_equals_its_definition(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> None:
    _assert_equal(_arguments(shape, dtype))


@pytest.mark.parametrize("num_choices", range(1, 9))
def test_a_token_has_one_to_eight_experts(num_choices: int) -> None:
    _assert_equal(_arguments((4, 20, 6, 8, num_choices)))


@pytest.mark.parametrize("num_experts", [1, 2, 60, 128, 130])
def test_any_number_of_experts(num_experts: int) -> None:
    _assert_equal(_arguments((9, 5, 3, num_experts, 1)))


def test_experts_without_tokens_and_all_tokens_on_one_expert() -> None:
    arguments = _arguments((40, 16, 8, 5, 1))
    for expert in (0, 3, 4):
        _assert_equal(arguments | {"expert_ids": torch.full_like(arguments["expert_ids"], expert)})


def test_a_group_longer_than_a_tile_and_groups_that_end_with_a_tile() -> None:
    # Tiles of 16 rows: 16, 17, 0, 33 and 2 tokens.
    ids = torch.tensor([0] * 16 + [1] * 17 + [3] * 33 + [4] * 2, device=DEVICE)
    arguments = _arguments((68, 16, 8, 5, 1))
    shuffled = ids[torch.randperm(68, generator=torch.Generator().manual_seed(2)).to(DEVICE)]
    for order in (ids, shuffled):
        _assert_equal(arguments | {"expert_ids": order.unsqueeze(1).contiguous()})


def test_what_lies_behind_the_weights_is_not_multiplied() -> None:
    arguments = _arguments(SHAPES[2])
    arguments["expert_ids"].fill_(4)  # the last
    for name in ("gate_up", "down"):
        size = arguments[name].numel()
        memory = torch.full((size + 64,), torch.nan, device=DEVICE)
        memory[:size] = arguments[name].flatten()
        arguments[name] = memory[:size].view(arguments[name].shape)
    _assert_equal(arguments)


def test_an_expert_that_stands_twice_counts_twice() -> None:
    arguments = _arguments((6, 10, 4, 3, 2))
    _assert_equal(arguments | {"expert_ids": torch.ones_like(arguments["expert_ids"])})


def test_weights_are_used_as_they_are() -> None:
    arguments = _arguments((5, 12, 4, 4, 3))
    weights = arguments["expert_weights"]
    renormalised = gpu.fused_moe(**(arguments | {"expert_weights": weights / weights.sum(-1, keepdim=True)}))
    expected = gpu.fused_moe(**arguments) / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(renormalised, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("quantizes_input", [True, False])
@pytest.mark.parametrize("eight_bits", [torch.int8, FP8])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2], SHAPES[5]])
def test_experts_of_eight_bits(
    shape: tuple[int, int, int, int, int], eight_bits: torch.dtype, quantizes_input: bool
) -> None:
    _assert_equal(_arguments(shape, torch.bfloat16, eight_bits=eight_bits, quantizes_input=quantizes_input))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(("hidden_size", "intermediate_size", "group_size"), [(64, 32, 32), (256, 128, 128)])
def test_experts_of_four_bits(
    hidden_size: int, intermediate_size: int, group_size: int, zeros: bool, dtype: torch.dtype
) -> None:
    _assert_equal(_four_bits((20, hidden_size, intermediate_size, 3, 2), group_size, zeros=zeros, dtype=dtype))


def test_experts_of_four_bits_in_several_groups_and_scales_of_another_dtype() -> None:
    arguments = _four_bits((5, 192, 64, 4, 3), 64, zeros=True, dtype=torch.bfloat16)
    scales = {name: arguments[name].half() for name in ("gate_up_scales", "down_scales")}
    _assert_equal(arguments | scales)


def _four_bits(
    shape: tuple[int, int, int, int, int], group_size: int, *, zeros: bool, dtype: torch.dtype
) -> dict[str, Any]:
    arguments = _arguments(shape, dtype)
    generator = torch.Generator().manual_seed(9)
    for name in ("gate_up", "down"):
        num_experts, out_features, in_features = arguments[name].shape
        numbers = torch.randint(16, (num_experts * out_features, in_features), generator=generator, dtype=torch.uint8)
        packed = pack_int4(numbers, group_size).view(num_experts, out_features, -1).to(DEVICE)
        groups = (num_experts, out_features, in_features // group_size)
        scales = (random_tensor(*groups, dtype=torch.float32, seed=3).abs() + 0.1) * in_features**-0.5 / 8
        zeros_of_groups = torch.randint(16, groups, generator=generator, dtype=torch.uint8).to(DEVICE)
        arguments |= {name: packed, f"{name}_scales": scales.to(dtype)}
        arguments |= {f"{name}_zeros": zeros_of_groups} if zeros else {}
    return arguments


@pytest.mark.parametrize("intermediate_size", [128, 256])
def test_experts_with_a_scale_for_each_block_of_128(intermediate_size: int) -> None:
    shape = (5, 384, intermediate_size, 3, 2)
    _assert_equal(_arguments(shape, eight_bits=FP8, by_block=True, quantizes_input=True))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("eight_bits", [None, torch.int8, FP8])
def test_the_tiles_of_every_target(target: str, eight_bits: torch.dtype | None) -> None:
    arguments = _arguments((37, 65, 33, 3, 2), eight_bits=eight_bits)
    order = torch.empty(74, dtype=torch.int32, device=DEVICE)
    starts = torch.empty(4, dtype=torch.int32, device=DEVICE)
    sort_launch(order, starts, arguments["expert_ids"]).run()
    output = torch.empty(74, 66, device=DEVICE)
    weights, scales = arguments["gate_up"], arguments.get("gate_up_scales")
    launch = grouped_matmul_launch(output, arguments["x"], None, weights, scales, order, starts, target=TARGETS[target])
    launch.run()
    meaning = weights.float() if scales is None else weights.float() * scales.unsqueeze(2)
    for pair, expert in enumerate(arguments["expert_ids"].flatten().tolist()):
        expected = arguments["x"][pair // 2] @ meaning[expert].T
        torch.testing.assert_close(output[pair], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ids", [[2, 0, 2, 1, 0, 2], [0], [0] * 5, [2, 2], [0, 1, 2] * 700])
def test_pairs_are_sorted_by_expert_and_keep_their_order(ids: list[int]) -> None:
    expert_ids = torch.tensor(ids, device=DEVICE).unsqueeze(1)
    memory = torch.full((len(ids) + 8,), -1, dtype=torch.int32, device=DEVICE)
    order = memory[: len(ids)]
    starts = torch.full((4,), -1, dtype=torch.int32, device=DEVICE)
    sort_launch(order, starts, expert_ids).run()
    assert order.tolist() == sorted(range(len(ids)), key=lambda pair: ids[pair])
    assert starts.tolist() == [sum(expert < first for expert in ids) for first in range(4)]
    assert memory[len(ids) :].tolist() == [-1] * 8


def test_rows_of_several_programs_are_added_up_to_their_last_element() -> None:
    pair_outputs, weights = (random_tensor(*shape, dtype=torch.float32, seed=1) for shape in ((2, 3, 2048), (2, 3)))
    output = torch.full((2, 2048), torch.nan, device=DEVICE)
    weighted_sum_launch(output, pair_outputs, weights).run()
    torch.testing.assert_close(output, (pair_outputs * weights.unsqueeze(2)).sum(1))


@pytest.mark.parametrize(
    ("num_pairs", "num_experts", "most"),
    [(0, 8, 0), (3, 8, 3), (8, 8, 8), (23, 8, 8), (24, 8, 9), (40, 8, 10), (64, 1, 4)],
)
def test_there_are_programs_for_every_way_to_share_out_the_pairs(num_pairs: int, num_experts: int, most: int) -> None:
    assert num_tiles_of(num_pairs, num_experts, 16) == most


def test_a_row_alone_equals_the_row_in_a_batch_with_four_bits() -> None:
    # A tile of 64 channels that is filled by half.
    arguments = _four_bits((60, 96, 32, 2, 2), 32, zeros=True, dtype=torch.float16)
    batch = gpu.fused_moe(**arguments)
    _assert_equal(arguments, batch)
    rows = {name: arguments[name][17:18].clone() for name in ("x", "expert_ids", "expert_weights")}
    assert torch.equal(gpu.fused_moe(**(arguments | rows))[0], batch[17])


@pytest.mark.parametrize("options", [{}, {"eight_bits": torch.int8, "quantizes_input": True}])
def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(options: dict[str, Any]) -> None:
    # 75 pairs an expert: tiles of 64 or 128 rows; alone, of 16.
    arguments = _arguments((100, 150, 40, 4, 3), torch.float16, **options)
    sizes = {tiles_of(rows, step_bytes=256, target=TARGETS["sm_90"]).block_m for rows in (75, 1)}
    assert sizes == {16, 128}
    batch = gpu.fused_moe(**arguments)
    for row in (0, 41, 99):
        rows = {name: arguments[name][row : row + 1].clone() for name in ("x", "expert_ids", "expert_weights")}
        assert torch.equal(gpu.fused_moe(**(arguments | rows))[0], batch[row])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.ones(2, 3, 8)}, r"x: expected shape \[num_tokens, hidden_size\], got \[2, 3, 8\]"),
        (
            {"x": torch.ones(2, 9)},
            r"gate_up: expected shape \[num_experts, 2 \* intermediate_size, 9\], got \[3, 8, 8\]",
        ),
        ({"gate_up": torch.ones(3, 7, 8)}, r"gate_up: expected shape .*, got \[3, 7, 8\]"),
        ({"gate_up": torch.ones(1025, 2, 8)}, r"gate_up: at most 1024 experts, got shape \[1025, 2, 8\]"),
        ({"gate_up": torch.ones(3, 8, 8).half()}, "gate_up: expected torch.float32, got torch.float16"),
        ({"down": torch.ones(3, 8, 5)}, r"down: expected shape \[3, 8, 4\], got \[3, 8, 5\]"),
        (
            {"expert_ids": torch.ones(3, 2).long()},
            r"expert_ids: expected shape \[2, experts of a token\], got \[3, 2\]",
        ),
        (
            {"expert_ids": torch.ones(2, 0).long()},
            r"expert_ids: expected shape \[2, experts of a token\], got \[2, 0\]",
        ),
        ({"expert_ids": torch.ones(2, 2).int()}, "expert_ids: expected torch.int64, got torch.int32"),
        ({"expert_weights": torch.ones(2, 1)}, r"expert_weights: expected shape \[2, 2\], got \[2, 1\]"),
        ({"quantizes_input": True}, "quantizes_input: weights of torch.float32 take the input as it is"),
        ({"gate_up_scales": torch.ones(3, 8)}, "gate_up_scales, down_scales: expected both or neither"),
        (
            {"gate_up_scales": torch.ones(3, 8), "down_scales": torch.ones(3, 8)},
            "dtype: expected torch.int8 or torch.float8_e4m3fn, got torch.float32",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(changed: dict[str, Any], message: str) -> None:
    arguments = _arguments((2, 8, 4, 3, 2))
    forebay_kernels.fused_moe(**arguments)
    with pytest.raises(ValueError, match=message):
        forebay_kernels.fused_moe(**(arguments | changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gate_up_scales": torch.ones(3, 7)}, r"gate_up_scales: expected shape \[3, 8\], got \[3, 7\]"),
        ({"down_scales": torch.ones(3, 8, 1)}, r"down_scales: expected shape \[3, 8\], got \[3, 8, 1\]"),
        ({"down_scales": torch.ones(3, 8).half()}, "down_scales: expected torch.float32, got torch.float16"),
        (
            {"gate_up_scales": torch.ones(3, 1, 1)},
            "gate_up_scales: scales by block need weights of torch.float8_e4m3fn",
        ),
    ],
)
def test_scales_that_do_not_fit_are_named(changed: dict[str, Any], message: str) -> None:
    arguments = _arguments((2, 8, 4, 3, 2), eight_bits=torch.int8)
    forebay_kernels.fused_moe(**arguments)
    with pytest.raises(ValueError, match=message):
        forebay_kernels.fused_moe(**(arguments | changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.ones(2, 32)}, r"gate_up: expected shape \[num_experts, 2 \* intermediate_size, 32 / 2\], got"),
        ({"gate_up_scales": torch.ones(3, 64, 3)}, r"gate_up_scales: expected shape \[3, 64, num_groups\]"),
        ({"gate_up_scales": torch.ones(3, 64, 4)}, "group_size: expected 32, 64 or a multiple of 128, got 16"),
        ({"down_scales": torch.ones(3, 64, 1).int()}, "down_scales: expected float32, float16 or bfloat16"),
        ({"gate_up_zeros": torch.ones(3, 64, 1).byte()}, r"gate_up_zeros: expected shape \[3, 64, 2\]"),
        ({"quantizes_input": True}, "quantizes_input: weights of torch.uint8 take the input as it is"),
    ],
)
def test_four_bits_that_do_not_fit_are_named(changed: dict[str, Any], message: str) -> None:
    arguments = _four_bits((2, 64, 32, 3, 2), 32, zeros=True, dtype=torch.float32)
    forebay_kernels.fused_moe(**arguments)
    with pytest.raises(ValueError, match=message):
        forebay_kernels.fused_moe(**(arguments | changed))


def test_zeros_are_for_four_bits_alone() -> None:
    arguments = _arguments((2, 8, 4, 3, 2)) | {"gate_up_zeros": torch.ones(3, 8, 1).byte()}
    with pytest.raises(ValueError, match=r"gate_up_zeros, down_zeros: weights of torch\.float32 have none"):
        forebay_kernels.fused_moe(**arguments)
