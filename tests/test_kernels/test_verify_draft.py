from typing import Any

import pytest
import torch

from forebay_kernels import reference, verify_draft
from forebay_kernels.gpu import verify_draft as gpu
from tests.test_kernels.comparison import DEVICE


def _probs(num_rows: int, vocab_size: int, seed: int) -> torch.Tensor:
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))
    return logits.softmax(-1).to(DEVICE)


def _arguments(num_drafts: list[int], vocab_size: int, *, drawn: bool, seed: int = 1) -> dict[str, Any]:
    rows = [count + 1 for count in num_drafts]
    generator = torch.Generator().manual_seed(seed)
    num_rows = sum(rows)
    return {
        "target_probs": _probs(num_rows, vocab_size, seed),
        "draft_token_ids": torch.randint(vocab_size, (num_rows,), generator=generator).to(DEVICE),
        "cu_rows": torch.tensor([0, *rows]).cumsum(0).int().to(DEVICE),
        "accept_draws": torch.rand(num_rows, generator=generator).to(DEVICE),
        "draws": torch.rand(len(rows), generator=generator).to(DEVICE),
        "draft_probs": _probs(num_rows, vocab_size, seed + 50) if drawn else None,
    }


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("vocab_size", [2, 33])
@pytest.mark.parametrize("num_drafts", [[], [0], [4], [1, 0, 5, 2]])
def test_verify_draft_equals_its_definition(num_drafts: list[int], vocab_size: int, drawn: bool) -> None:
    for seed in range(1, 4):
        arguments = _arguments(num_drafts, vocab_size, drawn=drawn, seed=seed)
        outputs, expected = gpu.verify_draft(**arguments), reference.verify_draft(**arguments)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(outputs, expected, strict=True))


@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
def test_drafts_are_kept_up_to_the_first_that_is_rejected(module: object) -> None:
    probs = torch.tensor([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]], device=DEVICE)
    token_ids, num_accepted = module.verify_draft(  # type: ignore[attr-defined]
        target_probs=probs,
        draft_token_ids=torch.tensor([1, 1, 2, 0], device=DEVICE),
        cu_rows=torch.tensor([0, 4], dtype=torch.int32, device=DEVICE),
        accept_draws=torch.tensor([0.49, 0.1, 0.0, 0.0], device=DEVICE),
        draws=torch.tensor([0.99], device=DEVICE),
    )
    # The second draft has probability 0.1, which 0.1 is not below; what is left of its row is token 0.
    assert token_ids.tolist() == [1, 0, -1, -1]
    assert num_accepted.tolist() == [1]


@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
@pytest.mark.parametrize("drawn", [True, False])
def test_the_first_token_is_distributed_as_the_target_says(drawn: bool, module: object) -> None:
    target, draft = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    # Every draft with its share, and every pair of numbers on a grid: the whole of the distribution, not a sample.
    drafts = [0] * 2 + [1] * 2 + [2] * 6 if drawn else [2] * 2
    grid = [(index + 0.5) / 8 for index in range(8)]
    cases = [(token, accept, draw) for token in drafts for accept in grid for draw in grid]
    num_seqs = len(cases)
    token_ids, _ = module.verify_draft(  # type: ignore[attr-defined]
        target_probs=target.expand(2 * num_seqs, 3).contiguous().to(DEVICE),
        draft_token_ids=torch.tensor([token for token, _, _ in cases]).repeat_interleave(2).to(DEVICE),
        cu_rows=(2 * torch.arange(num_seqs + 1)).int().to(DEVICE),
        accept_draws=torch.tensor([accept for _, accept, _ in cases]).repeat_interleave(2).to(DEVICE),
        draws=torch.tensor([draw for _, _, draw in cases]).to(DEVICE),
        draft_probs=draft.expand(2 * num_seqs, 3).contiguous().to(DEVICE) if drawn else None,
    )
    shares = token_ids[::2].bincount(minlength=3).cpu() / num_seqs
    torch.testing.assert_close(shares, target, rtol=0, atol=0.05)


def test_a_vocabulary_of_several_blocks() -> None:
    for seed in range(1, 4):
        arguments = _arguments([2, 0], 5000, drawn=True, seed=seed)
        outputs, expected = gpu.verify_draft(**arguments), reference.verify_draft(**arguments)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(outputs, expected, strict=True))


@pytest.mark.parametrize("module", [gpu, reference], ids=["triton", "torch"])
@pytest.mark.parametrize(("draw", "token"), [(0.5, 1), (1.0, 2)])
def test_a_draw_on_a_border_is_the_next_token_that_may_be(draw: float, token: int, module: object) -> None:
    token_ids, _ = module.verify_draft(  # type: ignore[attr-defined]
        target_probs=torch.tensor([[0.5, 0.25, 0.25, 0.0]], device=DEVICE),
        draft_token_ids=torch.tensor([0], device=DEVICE),
        cu_rows=torch.tensor([0, 1], dtype=torch.int32, device=DEVICE),
        accept_draws=torch.tensor([0.5], device=DEVICE),
        draws=torch.tensor([draw], device=DEVICE),
    )
    assert token_ids.tolist() == [token]


def test_a_sequence_alone_equals_the_sequence_in_a_batch() -> None:
    arguments = _arguments([3, 0, 5], 40, drawn=True)
    batch_ids, batch_accepted = gpu.verify_draft(**arguments)
    bounds = arguments["cu_rows"].tolist()
    for seq in range(3):
        rows = slice(bounds[seq], bounds[seq + 1])
        names = ("target_probs", "draft_token_ids", "accept_draws", "draft_probs")
        alone = {name: arguments[name][rows].clone() for name in names}
        alone["cu_rows"] = torch.tensor([0, bounds[seq + 1] - bounds[seq]], dtype=torch.int32, device=DEVICE)
        token_ids, accepted = gpu.verify_draft(**alone, draws=arguments["draws"][seq : seq + 1].clone())
        assert torch.equal(token_ids, batch_ids[rows])
        assert accepted[0] == batch_accepted[seq]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"target_probs": torch.ones(3, 5).half()}, "target_probs: expected torch.float32, got torch.float16"),
        ({"draft_token_ids": torch.zeros(2).long()}, r"draft_token_ids: expected shape \[3\], got \[2\]"),
        ({"cu_rows": torch.zeros(3).int()}, r"cu_rows: expected shape \[2\], got \[3\]"),
        ({"draft_probs": torch.ones(3, 4)}, r"draft_probs: expected shape \[3, 5\], got \[3, 4\]"),
    ],
)
def test_arguments_that_do_not_fit_are_named(changed: dict[str, torch.Tensor], message: str) -> None:
    arguments = _arguments([2], 5, drawn=True)
    verify_draft(**arguments)
    with pytest.raises(ValueError, match=message):
        verify_draft(**(arguments | changed))
