"""The compile gate: each kernel becomes machine code for each GPU, without spills, within its shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forebay_kernels
from forebay_kernels.compile_ahead import Row, main, reason_of, table_entry, triton_version
from forebay_kernels.compile_table import TABLE_PATH, differences, format_table, parse_table
from forebay_kernels.dispatch import KERNELS
from forebay_kernels.machine_code import Resources, occupancy_of, resources_of_amdgcn, resources_of_cuobjdump
from forebay_kernels.targets import TARGETS, target_named

PACKAGE_ROOT = Path(forebay_kernels.__file__).parents[1]


# Triton's own cache, keyed by each kernel's source, options and compiler: what did not change is not compiled again.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay" / "triton"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, where Triton is a compiler and not an interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(PACKAGE_ROOT), "TRITON_CACHE_DIR": str(CACHE)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=1700
    )


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    done = _run("-m", "forebay_kernels.compile_ahead", "--json")
    assert done.returncode == 0, done.stderr
    loaded: list[dict[str, Any]] = json.loads(done.stdout)
    return loaded


@pytest.mark.timeout(1800)  # with nothing in the cache
def test_every_row_is_as_in_the_checked_in_table(rows: list[dict[str, Any]]) -> None:
    version, expected = parse_table(TABLE_PATH.read_text())
    assert {(kernel, target) for kernel, _, target in expected} == {(k, t) for k in KERNELS for t in TARGETS}
    actual = dict(table_entry(Row(**row)) for row in rows)
    if version != triton_version():
        pytest.skip(f"the table is of triton {version}, this is {triton_version()}")
    changed = list(differences(expected, actual))
    assert not changed, "if meant: python -m forebay_kernels.compile_ahead --write-table\n" + "\n".join(changed)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_kernel_compiles_within_the_limits_of_the_gpu(rows: list[dict[str, Any]], kernel: str, target: str) -> None:
    mine = [row for row in rows if row["kernel"] == kernel and row["target"] == target]
    assert mine
    for row in mine:
        assert row["binary_bytes"] > 0
        # 0 would mean that the description was misread; 255 is the most that an NVIDIA thread can have.
        assert 0 < row["registers"] <= 255
        assert row["spilled_bytes"] == 0
        assert row["shared_bytes"] <= row["max_shared_bytes"] == TARGETS[target].max_shared_bytes
        if kernel.endswith("rms_norm"):
            assert row["shared_bytes"] > 0, "warps add up a row through shared memory"


def test_a_kernel_that_spills_is_seen_on_both_vendors_gpus() -> None:
    # One warp for a whole long row: 512 values a thread, more than the 255 registers of an NVIDIA thread and, with
    # the weights beside them, than the 512 of an AMD thread.
    program = """
import dataclasses, torch
from forebay_kernels.compile_ahead import compile_row
from forebay_kernels.gpu.rms_norm import rms_norm_launch
for target, hidden_size in (("sm_80", 16384), ("gfx942", 32768)):
    x, weight = torch.empty(16, hidden_size, device="meta"), torch.empty(hidden_size, device="meta")
    launch = dataclasses.replace(rms_norm_launch(x, x, weight, 1e-5), num_warps=1)
    print(compile_row("rms_norm", "one warp", launch, target).problem)
"""
    done = _run("-c", program)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("spills ") for line in lines), lines


@pytest.mark.timeout(600)
def test_hopper_copies_tiles_of_a_prompt_by_itself() -> None:
    program = """
from forebay_kernels.compile_ahead import compile_launch
from forebay_kernels.production import production_launches
from forebay_kernels.targets import TARGETS
for name in ("sm_80", "sm_90"):
    launches = {(kernel, what): launch for kernel, what, launch in production_launches(TARGETS[name])}
    launch = launches["prefill_attention", "heads 32+8 of 128, plain"]
    print("cp.async.bulk.tensor" in compile_launch(launch, TARGETS[name]).asm["ptx"])
"""
    done = _run("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", ["sm_75", "sm_86", "sm_120", "gfx90a", "gfx1100"])
def test_gpus_beyond_the_list_are_compiled_for(target: str) -> None:
    done = _run(
        *("-m", "forebay_kernels.compile_ahead", "--json", "--jobs", "1", "--dtype", "float16"),
        *("--target", target, "--kernel", "apply_bitmask"),
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["target"] == target
    assert row["binary_bytes"] > 0
    assert 0 < row["registers"] <= 255


@pytest.mark.timeout(600)
def test_a_gpu_that_the_compiler_does_not_know_is_an_error() -> None:
    done = _run(
        "-m", "forebay_kernels.compile_ahead", "--jobs", "1", "--target", "gfx999f", "--kernel", "apply_bitmask"
    )
    assert done.returncode == 1
    assert "gfx999f" in done.stderr
    assert "Traceback" not in done.stderr


ROWS = {
    ("rotary", "heads 9+3 of 64", "sm_80"): (40, 0, 0, 2, 94),
    ("rms_norm", "hidden 576", "sm_90"): (32, 0, 8, 4, 50),
}


def test_a_table_is_read_as_it_was_written() -> None:
    assert parse_table(format_table(ROWS, "3.9.0")) == ("3.9.0", ROWS)


@pytest.mark.parametrize("text", ["", "rotary | a", format_table(ROWS, "1") + "rotary | heads | sm_80 | 1 | 2"])
def test_another_text_is_no_table(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d: expected"):
        parse_table(text)


def test_a_table_tells_what_changed() -> None:
    first, use = next(iter(ROWS.items()))
    assert list(differences(ROWS, ROWS)) == []
    assert list(differences(ROWS, {first: (41, *use[1:])})) == [
        "rms_norm, hidden 576, sm_90: (32, 0, 8, 4, 50) -> not compiled",
        "rotary, heads 9+3 of 64, sm_80: (40, 0, 0, 2, 94) -> (41, 0, 0, 2, 94)",
    ]


@pytest.mark.parametrize(
    ("target", "registers", "shared_bytes", "num_warps", "share"),
    [
        ("sm_80", 32, 0, 4, 1.0),
        # 65,536 / (128 * 32 * 4) = 4 programs of 4 warps of 64.
        ("sm_80", 128, 0, 4, 0.25),
        # 228 KiB hold two programs of 98,304 bytes and 1 KiB each.
        ("sm_90", 32, 98304, 8, 0.25),
        ("sm_89", 255, 0, 8, 8 / 48),
        # 512 / 128 = 4 warps in each of 4 units, of 8.
        ("gfx942", 128, 0, 4, 0.5),
        ("gfx942", 32, 32768, 4, 0.25),
    ],
)
def test_occupancy(target: str, registers: int, shared_bytes: int, num_warps: int, share: float) -> None:
    resources = Resources(registers=registers, spilled_bytes=0, shared_bytes=shared_bytes)
    assert occupancy_of(resources, num_warps, TARGETS[target]) == pytest.approx(share)


def test_occupancy_of_a_gpu_without_known_limits_is_not_told() -> None:
    assert occupancy_of(Resources(registers=32, spilled_bytes=0, shared_bytes=0), 4, target_named("gfx1100")) is None


@pytest.mark.parametrize(
    ("name", "backend", "warp_size", "max_shared_bytes"),
    [
        ("sm_75", "cuda", 32, 64 * 1024),
        ("sm_86", "cuda", 32, 99 * 1024),
        ("sm_120", "cuda", 32, 99 * 1024),
        ("sm_110", "cuda", 32, None),
        ("gfx90a", "hip", 64, 64 * 1024),
        ("gfx1100", "hip", 32, 64 * 1024),
    ],
)
def test_targets_beyond_the_list(name: str, backend: str, warp_size: int, max_shared_bytes: int | None) -> None:
    target = target_named(name)
    assert (target.backend, target.warp_size, target.max_shared_bytes) == (backend, warp_size, max_shared_bytes)
    assert str(target.arch) == name.removeprefix("sm_")


@pytest.mark.parametrize("name", ["sm_90a", "sm_70", "h100", "gfx", "gfx12345", "", "sm_86 "])
def test_what_no_gpu_is_called_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected sm_80, sm_89, sm_90, sm_100, gfx942, or another such as sm_86"):
        target_named(name)


def test_what_gpus_can_multiply() -> None:
    def names(trait: Any) -> set[str]:
        return {name for name in (*TARGETS, "sm_75", "sm_86", "sm_120", "gfx90a") if trait(target_named(name))}

    assert names(lambda target: not target.has_bfloat16) == {"sm_75"}
    assert names(lambda target: target.copies_tiles) == {"sm_90", "sm_100"}
    assert names(lambda target: target.multiplies_fp8) == {"sm_89", "sm_90", "sm_100", "sm_120"}
    assert names(lambda target: target.multiplies_from_registers) == {"sm_75", "sm_80", "sm_86", "sm_89", "sm_120"}


def _row(**changed: Any) -> Row:
    sizes = {"binary_bytes": 9, "registers": 9, "spilled_bytes": 0, "shared_bytes": 8, "max_shared_bytes": 8}
    return Row(kernel="k", configuration="c", target="sm_80", num_warps=4, occupancy=0.5, **(sizes | changed))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (_row(), None),
        (_row(binary_bytes=0), "no machine code"),
        (_row(spilled_bytes=4), "spills 4 bytes a thread"),
        (_row(shared_bytes=9), "needs 9 bytes of shared memory, the target has 8"),
        (_row(shared_bytes=9, max_shared_bytes=None), None),
        (_row(binary_bytes=0, error="no such instruction"), "does not compile: no such instruction"),
    ],
)
def test_a_row_over_a_limit_has_a_problem(row: Row, problem: str | None) -> None:
    assert row.problem == problem


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("at 4:2\n  tl.dot(a, b)\n  ^\nint8 is not supported\n", "int8 is not supported"),
        (
            "PassManager::run failed",
            "a pass of Triton's compiler fails on it; its report on standard error names the pass",
        ),
        ("", "RuntimeError"),
    ],
)
def test_a_refusal_of_the_compiler_is_told_in_one_line(said: str, reason: str) -> None:
    assert reason_of(RuntimeError(said)) == reason


def test_cuobjdumps_report_is_read() -> None:
    report = "Function k:\n  REG:37 STACK:16 SHARED:0 LOCAL:8 CONSTANT[0]:408 TEXTURE:0\n"
    assert resources_of_cuobjdump(report, 64) == Resources(registers=37, spilled_bytes=24, shared_bytes=64)


def test_amds_metadata_is_read() -> None:
    assembly = (
        "    .group_segment_fixed_size: 128\n    .private_segment_fixed_size: 4\n    .sgpr_spill_count: 2\n"
        "    .vgpr_count:     24\n    .vgpr_spill_count: 1\n"
    )
    assert resources_of_amdgcn(assembly, 64) == Resources(registers=24, spilled_bytes=12, shared_bytes=128)


def test_a_description_of_another_form_is_an_error_and_never_a_zero() -> None:
    with pytest.raises(RuntimeError, match="REG"):
        resources_of_cuobjdump("nothing to see", 0)
    with pytest.raises(RuntimeError, match="vgpr_spill_count"):
        resources_of_amdgcn("nothing to see", 0)


def test_the_command_refuses_the_interpreter_and_unknown_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "TRITON_INTERPRET is set" in capsys.readouterr().err
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(SystemExit, match="2"):
        main(["--jobs", "0"])
    assert "argument --jobs: must be at least 1, got 0" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--write-table", "--target", "sm_80"])
    assert "the table has every kernel for every target" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--target", "h100"])
    assert "argument --target: unknown target 'h100': expected sm_80, " in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--target", "sm_75"])
    assert "argument --target: sm_75 does not multiply bfloat16: use --dtype float16" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--kernel", "softmax"])
    assert "unknown kernel 'softmax'; there are add_rms_norm, " in capsys.readouterr().err
