"""Every architecture against transformers on tiny random weights: the same logits, however the prompt is cut."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3TextConfig, PreTrainedModel

from forebay_server import LLM, SamplingParams
from forebay_server.errors import StartupError
from forebay_server.models.decoder import CausalLM
from forebay_server.models.hugging_face_config import config_from_hugging_face
from forebay_server.models.model_config import RopeScaling
from tests.test_server.models.forward import load, logits_of
from tests.test_server.models.tiny_gguf import save_as_gguf
from tests.test_server.models.tiny_models import ARCHITECTURES, save_tiny

TOLERANCE = 1e-4
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
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


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mistral", {"head_dim": 16}),
        ("mixtral", {}),
        ("qwen2", {}),
        ("qwen2 yarn", {}),
        ("qwen2_moe", {"decoder_sparse_step": 1}),
        ("qwen3", {}),
        ("qwen3_moe", {"mlp_only_layers": []}),
        ("gemma2", {"query_pre_attn_scalar": 32}),
        ("gemma3", {"query_pre_attn_scalar": 32}),
        ("phi4 mini", {}),
        ("smollm3", {}),
    ],
)
def test_gguf_files_hold_the_same_model(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    folder, _ = save_tiny(tmp_path / "folder", name, **changes)
    file = save_as_gguf(folder, tmp_path / "model.gguf")
    assert (logits_of(load(file), PROMPT) - logits_of(load(folder), PROMPT)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("length", [30, 45])
def test_a_scaling_that_depends_on_the_length_is_fixed_by_the_longest_request(tmp_path: Path, length: int) -> None:
    """Phi 4's long factors and the dynamic base: what transformers takes for a text of that length, from its start."""
    for name, rope in (("phi4 mini", {}), ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 32})):
        folder, reference = save_tiny(tmp_path / name, name, **rope)
        found = logits_of(load(folder), PROMPT[:length], [11, 1, 1], max_model_len=length)
        assert (found - reference_logits(reference, PROMPT[:length])).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["mistral window", "gemma2", "qwen3_moe"])
def test_answers_do_not_depend_on_how_they_are_scheduled(tmp_path: Path, name: str) -> None:
    """Windows, soft caps and experts through the whole engine: alone, in company, in small chunks, preempted."""
    folder, _ = save_tiny(tmp_path, name)
    prompts = [PROMPT[:start] for start in (30, 3, 17, 1)]
    params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
    found = []
    for options in ({}, {"max_num_batched_tokens": 7}, {"kv_cache_tokens": 48, "max_model_len": 48}):
        llm = LLM(str(folder), debug=True, **({"dtype": "float32", "kv_cache_tokens": 1024} | options))
        found.append([answer.token_ids for answer in llm.generate(prompts, params)])
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_text_parts_go_by_the_names_of_newer_files_too(tmp_path: Path) -> None:
    folder, _ = save_tiny(tmp_path, "gemma3 with images")
    expected = logits_of(load(folder), PROMPT)
    file = folder / "model.safetensors"
    weights = {
        f"model.{name}".replace("model.language_model.model", "model.language_model"): weight
        for name, weight in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})
    assert "model.language_model.layers.0.mlp.up_proj.weight" in weights
    assert "model.multi_modal_projector.mm_soft_emb_norm.weight" in weights
    assert torch.equal(logits_of(load(folder), PROMPT), expected)


def test_what_published_gemma_3_files_leave_out_is_what_their_class_assumes() -> None:
    """The `config.json` of the 4B model says no more of its text part than this."""
    text: dict[str, Any] = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    values = {"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "torch_dtype": "bfloat16"}
    config = config_from_hugging_face(values | {"text_config": text, "vision_config": {"hidden_size": 1152}}, "x")
    theirs: Any = Gemma3TextConfig(**text)
    assert config.architecture == "Gemma3ForCausalLM"
    for name, own in (("vocab_size", "vocab_size"), ("num_attention_heads", "num_heads"), ("head_dim", "head_dim")):
        assert getattr(config, own) == getattr(theirs, name)
    assert config.num_kv_heads == theirs.num_key_value_heads
    assert config.max_position == theirs.max_position_embeddings
    assert config.attention_scale == theirs.query_pre_attn_scalar**-0.5
    assert (config.rms_norm_eps, config.activation, config.tie_word_embeddings) == (1e-6, "gelu_tanh", True)
    assert theirs.rope_parameters["full_attention"]["rope_theta"] == config.rope_theta
    assert theirs.rope_parameters["sliding_attention"]["rope_theta"] == config.local_rope_theta
    assert config.rope_scaling == RopeScaling(kind="linear", factor=8.0)
    kinds = ["full_attention" if window is None else "sliding_attention" for window in config.sliding_windows]
    assert kinds == theirs.layer_types
    assert (config.dtype, config.eos_token_ids) == ("bfloat16", (1, 106))


def test_a_text_part_that_is_missing_is_named() -> None:
    with pytest.raises(StartupError, match="text_config is missing; it must be an object") as caught:
        config_from_hugging_face({"architectures": ["Mistral3ForConditionalGeneration"]}, "config.json")
    assert caught.value.exit_code == 16
