"""Tables of measured launch options: how they are found, what they change, and what is never tuned."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forebay_kernels.gpu import launch as launch_module
from forebay_kernels.gpu.launch import Launch, recorded
from forebay_kernels.gpu.rms_norm import rms_norm, rms_norm_launch
from forebay_kernels.tuning import command, tables
from forebay_kernels.tuning.tables import LaunchOptions, TableError, read_table, table_name, table_of, write_table
from forebay_kernels.tuning.tuner import MIN_GAIN, candidates, search


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for the user's tables."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    table_of.cache_clear()
    folder = tables.user_folder()
    folder.mkdir(parents=True)
    return folder


def a_launch(num_tokens: int = 2) -> Launch:
    x = torch.ones(num_tokens, 48)
    return rms_norm_launch(torch.empty_like(x), x, torch.ones(48), 1e-5)


def test_without_a_table_the_defaults_hold(cache_folder: Path) -> None:
    assert table_of("NVIDIA H200") == {}
    assert not list(cache_folder.iterdir())


def test_a_table_comes_back_as_it_was_written(cache_folder: Path) -> None:
    table = {"b": LaunchOptions(8, None), "a": LaunchOptions(4, 3)}
    text = write_table("NVIDIA H200", table, {"torch": "2.15"})
    (cache_folder / "nvidia-h200.json").write_text(text)
    assert table_of("NVIDIA H200") == table
    assert json.loads(text)["gpu"] == "NVIDIA H200"


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', '{"version": 1, "options": {"a": {"warps": 1}}}'])
def test_a_damaged_table_is_named(text: str) -> None:
    with pytest.raises(TableError, match=r"x\.json: no table"):
        read_table(text, "x.json")


def test_a_table_of_another_version_is_refused() -> None:
    with pytest.raises(TableError, match="version 2"):
        read_table('{"version": 2, "options": {}}', "x.json")


def test_names_of_gpus_are_names_of_files() -> None:
    assert table_name("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
    assert table_name("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"


def test_a_shape_class_does_not_know_the_batch() -> None:
    assert a_launch(1).shape_class == a_launch(7).shape_class
    assert "BLOCK_HIDDEN=64" in a_launch().shape_class
    assert a_launch().shape_class.startswith("_rms_norm_kernel ")


def test_a_shape_class_knows_the_number_format() -> None:
    x = torch.ones(2, 48, dtype=torch.bfloat16)
    other = rms_norm_launch(torch.empty_like(x), x, torch.ones(48, dtype=torch.bfloat16), 1e-5)
    assert other.shape_class != a_launch().shape_class


class _Kernel:
    """Stands for a Triton function: remembers with what it was started."""

    __name__ = "_rms_norm_kernel"

    def __init__(self) -> None:
        self.options: list[dict[str, object]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> "_Kernel":
        return self

    def __call__(self, *, num_warps: int, enable_fp_fusion: bool, num_stages: int | None = None, **_: object) -> None:
        self.options.append({"num_warps": num_warps, "num_stages": num_stages, "fusion": enable_fp_fusion})


def test_launches_take_the_tables_options(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = _Kernel()
    launch = replace(a_launch(), kernel=kernel, num_stages=2)
    monkeypatch.setattr(launch_module, "_current_table", lambda: {launch.shape_class: LaunchOptions(16, 5)})
    launch.run()
    launch.run_as_is()
    monkeypatch.setattr(launch_module, "_current_table", lambda: {"another": LaunchOptions(16, 5)})
    launch.run()
    default = {"num_warps": launch.num_warps, "num_stages": 2, "fusion": True}
    assert kernel.options == [{"num_warps": 16, "num_stages": 5, "fusion": True}, default, default]


def test_what_an_operation_launches_can_be_recorded() -> None:
    x = torch.ones(2, 48)
    with recorded() as launches:
        rms_norm(x, torch.ones(48), 1e-5)
    rms_norm(x, torch.ones(48), 1e-5)
    assert [launch.shape_class for launch in launches] == [a_launch().shape_class]


def test_the_fastest_option_is_kept() -> None:
    found = search(a_launch(), lambda launch: {1: 10.0, 2: 9.0, 4: 6.0, 8: 7.0, 16: 20.0}[launch.num_warps])
    assert found.best == LaunchOptions(4, None)
    assert (found.default_us, found.best_us) == (10.0, 6.0)


def test_a_gain_within_the_noise_is_none() -> None:
    found = search(a_launch(), lambda launch: 10.0 if launch.num_warps == 1 else 10.0 / MIN_GAIN + 0.01)
    assert found.best is None


def test_options_that_do_not_compile_are_passed_over() -> None:
    found = search(a_launch(), lambda launch: {1: 10.0, 8: 5.0}.get(launch.num_warps))
    assert found.best == LaunchOptions(8, None)
    with pytest.raises(RuntimeError, match="does not run"):
        search(a_launch(), lambda _: None)


def test_stages_are_tried_only_where_a_loop_has_some() -> None:
    assert {options.num_stages for options in candidates(a_launch())} == {None}
    assert len({options.num_stages for options in candidates(replace(a_launch(), num_stages=3))}) > 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nothing_is_tuned_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["kernels"]) == 2
    assert "sees no GPU" in capsys.readouterr().err
    assert command.main(["servers"]) == 2
