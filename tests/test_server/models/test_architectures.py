"""Every architecture against transformers on tiny random weights: the same logits, however the prompt is cut."""

import pytest
import torch
from transformers import PreTrainedModel

from forebay_server.models.decoder import CausalLM
from tests.test_server.models.forward import load, logits_of
from tests.test_server.models.tiny_models import ARCHITECTURES, save_tiny

TOLERANCE = 1e-4
PROMPT = torch.randint(3, 128, (45,), generator=torch.Generator().manual_seed(3)).tolist()


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, prompt: list[int] = PROMPT) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return logits


@pytest.fixture(scope="module", params=ARCHITECTURES)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[CausalLM, torch.Tensor]:
    """Ours, and the logits of transformers."""
    folder, reference = save_tiny(tmp_path_factory.mktemp("tiny"), request.param)
    return load(folder), reference_logits(reference)


@pytest.mark.parametrize(
    "chunk_sizes",
    [[], [20], [7, 16, 3, 1, 1], [1] * 45],
    ids=["whole", "two chunks", "uneven chunks", "token by token"],
)
def test_logits_equal_transformers(models: tuple[CausalLM, torch.Tensor], chunk_sizes: list[int]) -> None:
    model, expected = models
    assert expected.std() > 0.1  # a model that says the same of everything would hide mistakes
    assert (logits_of(model, PROMPT, chunk_sizes) - expected).abs().max() <= TOLERANCE
