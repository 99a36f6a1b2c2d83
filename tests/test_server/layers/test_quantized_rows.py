"""Norms and activations that round for the layer behind them: on GPUs only, and bit for bit what two kernels give."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from forebay_kernels.dispatch import interpreted_on_cpu
from forebay_kernels.fp8_weights import Fp8Weight
from forebay_kernels.int8_weights import Int8Weight
from forebay_server.layers import gated_mlp, norm, quantized_matmul
from forebay_server.layers.gated_mlp import GatedMLP
from forebay_server.layers.linear import Linear
from forebay_server.layers.norm import GemmaRMSNorm, RMSNorm
from forebay_server.layers.weight_forms import LinearWeight
from forebay_server.models.model_config import Activation
from tests.test_kernels import conftest  # noqa: F401  chooses the interpreter before triton is imported

SIZE, INNER, NUM_TOKENS = 32, 48, 3


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def int8(weight: torch.Tensor) -> LinearWeight:
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    return Int8Weight((weight / scales).round().to(torch.int8), scales)


def int8_by_group(weight: torch.Tensor) -> LinearWeight:
    groups = weight.view(len(weight), -1, 16)
    scales = groups.abs().amax(dim=2) / 127
    return Int8Weight((groups / scales.unsqueeze(2)).round().to(torch.int8).flatten(1), scales)


def fp8(weight: torch.Tensor) -> LinearWeight:
    scales = weight.abs().amax(dim=1) / 448
    return Fp8Weight((weight / scales.unsqueeze(1)).to(torch.float8_e4m3fn), scales)


def fill(layer: Linear, form: Callable[[torch.Tensor], LinearWeight], seed: int, *, quantizes_input: bool) -> None:
    weight = random(layer.out_features, layer.in_features, seed=seed) * 0.1
    for name, rows in zip(layer.parts, torch.split(weight, list(layer.parts.values())), strict=True):
        layer.set_part(name, form(rows))
    layer.quantizes_input = quantizes_input


class Block:
    """A norm and the gated MLP that reads it."""

    def __init__(
        self,
        form: Callable[[torch.Tensor], LinearWeight],
        activation: Activation = "silu",
        norm_class: type[RMSNorm] = RMSNorm,
        *,
        quantizes_input: bool = True,
    ) -> None:
        self.norm = norm_class(SIZE, 1e-5)
        self.norm.weight.data = random(SIZE, seed=1).bfloat16()
        self.mlp = GatedMLP(SIZE, INNER, activation)
        fill(self.mlp.gate_up_proj, form, 2, quantizes_input=quantizes_input)
        fill(self.mlp.down_proj, form, 3, quantizes_input=quantizes_input)

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = random(NUM_TOKENS, SIZE, seed=4).bfloat16(), random(NUM_TOKENS, SIZE, seed=5).bfloat16()
        rows, total = self.norm.add_for(x, residual, self.mlp.reader)
        return self.mlp(rows), total


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that round, as they are called."""
    called: list[str] = []

    def watched(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            called.append(name)
            return kernel(*arguments)

        return run

    def watch(module: ModuleType, kernel_name: str, name: str) -> None:
        monkeypatch.setattr(module, kernel_name, watched(name, getattr(module, kernel_name)))

    watch(norm, "add_rms_norm_quantize", "norm")
    watch(quantized_matmul, "quantize_per_token", "alone")
    for activation, kernel in list(gated_mlp._QUANTIZED.items()):
        monkeypatch.setitem(gated_mlp._QUANTIZED, activation, watched(activation, kernel))
    return called


@pytest.mark.parametrize("form", [int8, fp8])
@pytest.mark.parametrize(("activation", "norm_class"), [("silu", RMSNorm), ("gelu_tanh", GemmaRMSNorm)])
def test_rounding_on_the_way_gives_the_same_bits(
    form: Callable[[torch.Tensor], LinearWeight],
    activation: Activation,
    norm_class: type[RMSNorm],
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = Block(form, activation, norm_class)
    with interpreted_on_cpu():
        found = block.run()
        assert calls == ["norm", activation]
        calls.clear()
        monkeypatch.setattr(Linear, "input_dtype", None)
        expected = block.run()
        assert calls == ["alone", "alone"]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert found[0].isfinite().all()


def test_layers_that_read_their_input_as_it_is_are_given_it(calls: list[str]) -> None:
    with interpreted_on_cpu():
        for block in (
            Block(torch.Tensor.bfloat16),
            Block(int8, quantizes_input=False),
            Block(int8_by_group),
        ):
            assert block.run()[0].dtype == torch.bfloat16
    assert calls == []


def test_on_cpus_nothing_is_rounded_on_the_way(calls: list[str]) -> None:
    Block(int8).run()
    assert calls == []
