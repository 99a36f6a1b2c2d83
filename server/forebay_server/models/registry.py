"""Which class runs which architecture."""

from forebay_server.models.decoder import CausalLM
from forebay_server.models.gemma2 import Gemma2ForCausalLM
from forebay_server.models.gemma3 import Gemma3ForCausalLM
from forebay_server.models.llama import LlamaForCausalLM
from forebay_server.models.mistral import MistralForCausalLM
from forebay_server.models.mixtral import MixtralForCausalLM
from forebay_server.models.model_config import ModelConfig, unsupported
from forebay_server.models.phi3 import Phi3ForCausalLM
from forebay_server.models.qwen2 import Qwen2ForCausalLM, Qwen2MoeForCausalLM
from forebay_server.models.qwen3 import Qwen3ForCausalLM, Qwen3MoeForCausalLM

MODEL_CLASSES: dict[str, type[CausalLM]] = {
    "Gemma2ForCausalLM": Gemma2ForCausalLM,
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "MixtralForCausalLM": MixtralForCausalLM,
    "Phi3ForCausalLM": Phi3ForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen2MoeForCausalLM": Qwen2MoeForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Qwen3MoeForCausalLM": Qwen3MoeForCausalLM,
    "SmolLM3ForCausalLM": LlamaForCausalLM,
    # as GGUF writes them
    "gemma2": Gemma2ForCausalLM,
    "gemma3": Gemma3ForCausalLM,
    "llama": LlamaForCausalLM,
    "phi3": Phi3ForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen2moe": Qwen2MoeForCausalLM,
    "qwen3": Qwen3ForCausalLM,
    "qwen3moe": Qwen3MoeForCausalLM,
    "smollm3": LlamaForCausalLM,
}


def model_class(config: ModelConfig) -> type[CausalLM]:
    """The class for a checkpoint.

    Raises:
        StartupError: 2 when the architecture is not supported.
    """
    if config.architecture == "llama" and config.moe is not None:  # GGUF files call Mixtral so
        return MixtralForCausalLM
    found = MODEL_CLASSES.get(config.architecture)
    if found is None:
        raise unsupported(
            f"architecture {config.architecture} is not supported; these are: {', '.join(sorted(MODEL_CLASSES))}"
        )
    return found
