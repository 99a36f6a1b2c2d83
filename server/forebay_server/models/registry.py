"""Which class runs which architecture."""

from forebay_server.models.llama import LlamaForCausalLM
from forebay_server.models.model_config import ModelConfig, unsupported

MODEL_CLASSES: dict[str, type[LlamaForCausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "llama": LlamaForCausalLM,  # as GGUF writes it
}


def model_class(config: ModelConfig) -> type[LlamaForCausalLM]:
    """The class for a checkpoint.

    Raises:
        StartupError: 2 when the architecture is not supported.
    """
    found = MODEL_CLASSES.get(config.architecture)
    if found is None:
        raise unsupported(
            f"architecture {config.architecture} is not supported; these are: {', '.join(sorted(MODEL_CLASSES))}"
        )
    return found
