"""What a Hugging Face folder holds beside weights, taken from such a folder or made from a GGUF file's header."""

import json
import shutil
from pathlib import Path
from typing import Any

from forebay_server.errors import ExitCode, StartupError
from forebay_server.models.model_config import ModelConfig
from forebay_server.text.model_text import load_model_text
from forebay_server.weights.checkpoint import Checkpoint, read_json

_COPIED = ("*.json", "*.jinja", "*.model", "*.txt")
_NOT_COPIED = ("config.json", "quantize_config.json", "quant_config.json")
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""What Hugging Face calls the architectures of GGUF files that can become a folder."""


def config_values(checkpoint: Checkpoint) -> dict[str, Any]:
    """The values of `config.json`, without what they say of quantization.

    Raises:
        StartupError: 2 for a GGUF file whose configuration a folder cannot tell.
    """
    if checkpoint.path.is_dir() and (checkpoint.path / "config.json").is_file():
        values = read_json(checkpoint.path / "config.json")
        for key in ("quantization_config", "compression_config"):
            values.pop(key, None)
    else:
        values = _values_of(checkpoint.config, checkpoint.path)
    return values | {"torch_dtype": "bfloat16"}


def write_text_files(source: Path, folder: Path) -> None:
    """Copy or make the tokenizer, the chat template and the generation defaults.

    Args:
        source: a Hugging Face folder, or a GGUF file.
        folder: where to.

    Raises:
        StartupError: the tokenizer of the GGUF file cannot be read.
    """
    if source.is_dir():
        for pattern in _COPIED:
            for file in source.glob(pattern):
                if file.name not in _NOT_COPIED and not file.name.endswith(".index.json"):
                    shutil.copyfile(file, folder / file.name)
        return
    text = load_model_text(source)
    tokenizer = text.tokenizer
    (folder / "tokenizer.json").write_text(tokenizer.definition(), encoding="utf-8")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos_token or None,
        "eos_token": tokenizer.eos_token or None,
        "clean_up_tokenization_spaces": False,
    }
    if text.chat_template is not None:
        settings["chat_template"] = text.chat_template.source
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "generation_config.json", {"eos_token_id": list(tokenizer.eos_token_ids)})


def write_json(file: Path, value: object) -> None:
    """Write a value as indented JSON."""
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _values_of(config: ModelConfig, source: Path) -> dict[str, Any]:
    name = _CLASSES.get(config.architecture)
    scaling = config.rope_scaling
    problem = None
    if name is None or config.moe is not None:
        problem = f"architecture {config.architecture!r}; {', '.join(_CLASSES)} without experts can be"
    elif config.rope_frequency_factors is not None or (scaling is not None and scaling.kind not in ("linear", "yarn")):
        problem = "rotary factors that config.json has no place for"
    if problem is not None:
        raise StartupError(
            ExitCode.BAD_CONFIGURATION,
            "UnsupportedModel",
            f"{source} has {problem}; quantize the model's Hugging Face folder (config.json and safetensors) instead",
        )
    rotary: dict[str, Any] = {"rope_theta": config.rope_theta}
    if scaling is not None:
        rotary["rope_scaling"] = {
            "rope_type": scaling.kind,
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    return rotary | {
        "architectures": [name],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "eos_token_id": list(config.eos_token_ids) or None,
    }
