"""AMX: tiles give the bits of other instructions, emulated where a CPU has none; without leave, other ones compute."""

import ctypes
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from forebay_kernels.cpu import library
from forebay_kernels.cpu.library import VARIANTS, best_variant, cpu_flags, load_library
from forebay_kernels.cpu.multiply import multiply
from forebay_kernels.cpu.packing import pack
from forebay_kernels.int8_weights import Int8Weight
from tests.test_kernels.cpu_library import EMULATED, can_emulate, variants
from tests.test_kernels.test_cpu_multiply import make_weight
from tests.test_kernels.test_cpu_step import SHAPES, Model, batch_of, tokens_of

pytestmark = pytest.mark.skipif(not can_emulate(), reason="this CPU has no AVX-512 VNNI")

WITH_TILES = [variant for variant in variants() if variant.startswith("amx")]
KINDS = ("channels", "groups of 32", "groups of 128", "q4_0", "q4_1", "int4 by 128")
ROWS = (15, 16, 17, 23, 24, 31, 32, 57, 140, 141, 157)
"""Around 16, and around seven more than a multiple of it, which go without; 140 rows are multiplied at once."""


@pytest.mark.parametrize("variant", WITH_TILES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_features", [128, 1152, 2176])
def test_tiles_change_no_bit(variant: str, kind: str, in_features: int) -> None:
    packed = pack(make_weight(kind, 70, in_features), torch.linspace(-1, 1, 70) if in_features == 128 else None)
    x = torch.randn(max(ROWS), in_features, generator=torch.Generator().manual_seed(1))
    x[3], x[20, 7] = 0.0, 1e4
    wanted = multiply(x, packed, variant="avx512vnni")
    for rows in ROWS:
        assert torch.equal(multiply(x[:rows], packed, variant=variant, num_threads=2), wanted[:rows]), rows


@pytest.mark.parametrize("variant", WITH_TILES)
def test_extreme_numbers_and_what_is_not_finite(variant: str) -> None:
    numbers = torch.tensor([-128, 127], dtype=torch.int8).repeat_interleave(32).unsqueeze(1).repeat(1, 1024)
    x = torch.ones(40, 1024)
    x[1::2] = -1
    x[18, 5], x[33, 1000] = torch.nan, torch.inf
    packed = pack(Int8Weight(numbers, torch.ones(64, 1)))
    wanted = multiply(x, packed, variant="avx512vnni")
    result = multiply(x, packed, variant=variant)
    assert torch.equal(result.isnan(), wanted.isnan())
    assert torch.equal(result.nan_to_num(), wanted.nan_to_num())
    assert result.isfinite().all(dim=-1).nonzero().flatten().tolist() == [
        row for row in range(40) if row not in (18, 33)
    ]


@pytest.mark.parametrize("variant", WITH_TILES)
def test_a_head_by_itself_uses_tiles_too(variant: str) -> None:
    model, other = Model(SHAPES[0], variant), Model(SHAPES[0], "avx512vnni")
    rows = list(range(30))
    batch = batch_of(model, (tokens_of(len(rows)), 0, 0), wanted=rows)
    wanted = other.step.logits(batch)
    assert torch.equal(model.step.logits(batch), wanted)
    assert torch.equal(model.step.head(model.step.hidden(batch)), wanted)


@pytest.fixture
def amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """A machine with AMX, as far as `best_variant` can tell, whose tiles can be disturbed."""
    for variant in ("amx", "avx512vnni"):
        shutil.copy(
            library.LIBRARIES / f"forebay_{EMULATED if variant == 'amx' else variant}.so",
            tmp_path / f"forebay_{variant}.so",
        )
    monkeypatch.setattr(library, "LIBRARIES", tmp_path)
    monkeypatch.setattr(library, "cpu_flags", lambda: VARIANTS["amx"])
    load_library.cache_clear()
    best_variant.cache_clear()
    yield ctypes.CDLL(str(tmp_path / "forebay_amx.so"))
    load_library.cache_clear()
    best_variant.cache_clear()


def test_amx_is_the_best_where_it_works(amx: ctypes.CDLL, caplog: pytest.LogCaptureFixture) -> None:
    assert best_variant() == "amx"
    assert not caplog.records


@pytest.mark.parametrize(
    ("disturbance", "reason"),
    [
        (1, "the system does not let this process use AMX"),  # it says so
        (2, "the system does not let this process use AMX"),  # an instruction turns out to be illegal
        (3, "AMX computes other numbers on this machine"),
    ],
)
def test_tiles_that_do_not_work_are_left_alone(
    amx: ctypes.CDLL, caplog: pytest.LogCaptureFixture, disturbance: int, reason: str
) -> None:
    amx.forebay_disturb_tiles(disturbance)
    assert best_variant() == "avx512vnni"
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, f"the C++ library for amx is not used: {reason}")
    ]


@pytest.mark.skipif("amx" in WITH_TILES, reason="this machine lets processes use AMX")
@pytest.mark.skipif(not VARIANTS["avx512bf16"] <= cpu_flags(), reason="the library for AMX needs AVX-512 BF16")
def test_the_right_to_use_tiles_is_asked_of_the_system() -> None:
    with pytest.raises(OSError, match="the system does not let this process use AMX"):
        load_library("amx")
