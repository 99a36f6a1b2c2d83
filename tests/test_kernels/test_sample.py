from typing import Any

import pytest
import torch

from forebay_kernels import reference, sample
from forebay_kernels.gpu import sample as gpu
from tests.test_kernels.comparison import DEVICE, random_tensor


def _arguments(logits: torch.Tensor, **parameters: list[float]) -> dict[str, Any]:
    num_rows = len(logits)
    defaults = {"temperatures": 1.0, "top_ps": 1.0, "min_ps": 0.0, "draws": 0.5}
    floats = {
        name: torch.tensor(parameters.get(name, [value] * num_rows), dtype=torch.float32, device=DEVICE)
        for name, value in defaults.items()
    }
    top_ks = torch.tensor(parameters.get("top_ks", [0] * num_rows), dtype=torch.int32, device=DEVICE)
    return {"logits": logits, "top_ks": top_ks, **floats}


def _assert_equal(arguments: dict[str, Any]) -> torch.Tensor:
    token_ids, logprobs = gpu.sample(**arguments)
    expected_ids, expected_logprobs = reference.sample(**arguments)
    assert torch.equal(token_ids, expected_ids)
    torch.testing.assert_close(logprobs, expected_logprobs, rtol=1e-5, atol=1e-5)
    return token_ids


@pytest.mark.parametrize(("num_rows", "vocab_size"), [(0, 8), (1, 1), (3, 33), (2, 5000)])
def test_sample_equals_its_definition(num_rows: int, vocab_size: int) -> None:
    logits = random_tensor(num_rows, vocab_size + 3, dtype=torch.float32, seed=1, scale=3)[:, 1:-2]
    _assert_equal(_arguments(logits, draws=[0.3 * (row + 1) for row in range(num_rows)]))


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperatures": [0.0, 0.0, 0.5, 2.0]},
        {"top_ks": [1, 2, 3, 100]},
        {"top_ps": [0.0, 0.3, 0.7, 0.999]},
        {"min_ps": [0.01, 0.2, 0.9, 1.0]},
        {"top_ks": [5, 9, 9, 0], "top_ps": [0.5, 0.8, 1.0, 0.8], "min_ps": [0.0, 0.1, 0.1, 0.1]},
    ],
)
def test_temperature_and_cuts(parameters: dict[str, list[float]]) -> None:
    logits = random_tensor(4, 50, dtype=torch.float32, seed=2, scale=2)
    for draw in (0.37, 0.9999999):
        _assert_equal(_arguments(logits, **parameters, draws=[draw] * 4))


@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
def test_only_what_a_cut_keeps_is_drawn(module: object) -> None:
    probabilities = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15], device=DEVICE)

    def drawn(num_draws: int = 7, **parameter: float) -> list[int]:
        """Tokens of draws at equal distances."""
        logits = probabilities.log().expand(num_draws, 5).contiguous()
        draws = [(index + 0.5) / num_draws for index in range(num_draws)]
        parameters = {name: [value] * num_draws for name, value in parameter.items()}
        token_ids, _ = module.sample(**_arguments(logits, draws=draws, **parameters))  # type: ignore[attr-defined]
        return token_ids.tolist()  # type: ignore[no-any-return]

    # Each token as often as it is likely, in the vocabulary's order.
    assert drawn(20) == [0] * 2 + [1] * 8 + [2] + [3] * 6 + [4] * 3
    assert set(drawn(top_ks=2)) == {1, 3}
    assert set(drawn(top_ps=0.6)) == {1, 3}
    assert set(drawn(top_ps=0.75)) == {1, 3, 4}
    assert set(drawn(min_ps=0.3)) == {1, 3, 4}
    assert set(drawn(temperatures=0.0)) == {1}
    # top_p counts what top_k left: 0.5 of 0.7 is reached by the first.
    assert set(drawn(top_ks=2, top_ps=0.5)) == {1}


@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
def test_forbidden_tokens_are_never_drawn_and_the_first_of_equals_is_the_greedy_one(module: object) -> None:
    logits = torch.full((3, 6), -torch.inf, device=DEVICE)
    logits[:, 2], logits[:, 4] = 1.0, 1.0
    arguments = _arguments(logits, draws=[0.0, 0.9999999, 0.7], temperatures=[1.0, 1.0, 0.0])
    token_ids, logprobs = module.sample(**arguments)  # type: ignore[attr-defined]
    assert token_ids.tolist() == [2, 4, 2]
    torch.testing.assert_close(logprobs, torch.full((3,), 0.5, device=DEVICE).log())


@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
def test_equally_likely_tokens_share_the_draws_over_all_blocks(module: object) -> None:
    # A draw on the border of two tokens is the second's; the greedy token is the first, in whichever block.
    arguments = _arguments(torch.zeros(4, 8192, device=DEVICE), draws=[0.0, 0.5, 0.75, 0.5], temperatures=[1, 1, 1, 0])
    token_ids, _ = module.sample(**arguments)  # type: ignore[attr-defined]
    assert token_ids.tolist() == [0, 4096, 6144, 0]


def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit() -> None:
    logits = random_tensor(3, 300, dtype=torch.float32, seed=3, scale=2)
    arguments = _arguments(logits, top_ps=[0.9, 0.5, 1.0], top_ks=[0, 40, 7], draws=[0.2, 0.6, 0.9])
    batch = gpu.sample(**arguments)
    for row in range(3):
        alone = gpu.sample(**{name: tensor[row : row + 1].clone() for name, tensor in arguments.items()})
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, batch, strict=True))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logits": torch.zeros(2, 5).half()}, "logits: expected torch.float32, got torch.float16"),
        ({"logits": torch.zeros(2, 0)}, "logits: vocab_size must be at least 1"),
        ({"draws": torch.zeros(3)}, r"draws: expected shape \[2\], got \[3\]"),
        ({"top_ks": torch.zeros(2)}, "top_ks: expected torch.int32, got torch.float32"),
    ],
)
def test_arguments_that_do_not_fit_are_named(changed: dict[str, torch.Tensor], message: str) -> None:
    arguments = _arguments(torch.zeros(2, 5))
    sample(**arguments)
    with pytest.raises(ValueError, match=message):
        sample(**(arguments | changed))
