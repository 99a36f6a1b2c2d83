"""Which device and number formats a model runs on, how much memory is free there, how many threads compute."""

import torch

from forebay_kernels.dispatch import runs_triton
from forebay_server.config import EngineConfig
from forebay_server.engine.host_resources import available_cpus, available_memory_bytes, engine_threads
from forebay_server.errors import ExitCode, StartupError
from forebay_server.layers.weight_forms import FormatKind
from forebay_server.models.model_config import ModelConfig
from forebay_server.weights.quantization import QuantizationOptions

EIGHT_BITS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""Of a KV cache; with a scale for each token and head."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str, rank: int = 0) -> torch.device:
    """`auto` is the GPU when there is one; each rank has its own.

    Raises:
        StartupError: 2 when a GPU is asked for and there is none.
    """
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise bad_configuration("--device cuda: no GPU can be used", "use --device cpu, or check the driver")
    return torch.device("cuda", rank) if has_gpu and name != "cpu" else torch.device("cpu")


def resolve_dtype(config: EngineConfig, model_config: ModelConfig) -> torch.dtype:
    """`auto` is what the checkpoint says that it was trained in, bfloat16 when it does not say (GGUF)."""
    name = config.dtype if config.dtype != "auto" else model_config.dtype
    return DTYPES.get(name or "", torch.bfloat16)


def resolve_kv_dtype(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """`auto` is the dtype of the arithmetic.

    Raises:
        StartupError: 2 for a format that the device cannot read.
    """
    if config.kv_cache_dtype == "auto":
        return dtype
    if config.kv_cache_dtype == "fp8" and not runs_triton(resolve_device(config.device).type):
        raise bad_configuration("--kv-cache-dtype fp8: only GPUs read it", "use --kv-cache-dtype int8")
    return DTYPES.get(config.kv_cache_dtype) or EIGHT_BITS[config.kv_cache_dtype]


def quantization_options(
    config: EngineConfig, device: torch.device, *, is_compiled: bool = False
) -> QuantizationOptions:
    """What the flags ask for on this device.

    Args:
        config: the flags.
        device: that computes.
        is_compiled: whether the C++ library computes this model's steps, on CPUs.

    Raises:
        StartupError: 2 for a format that the device cannot multiply.
    """
    has_kernels = runs_triton(device.type)
    if config.quantization == "fp8" and not has_kernels:
        raise bad_configuration("--quantization fp8: CPUs have no FP8 arithmetic", "use --quantization int8")
    is_exact = config.quantization == "auto" and config.dtype == "float32"
    return QuantizationOptions(
        mode="none" if is_exact else config.quantization,
        group_size=config.quantization_group_size,
        exclude=config.quantization_exclude,
        kept_kinds=kept_kinds(device, is_compiled=is_compiled),
        always_quantizes_input=not has_kernels,
    )


def kept_kinds(device: torch.device, *, is_compiled: bool) -> frozenset[FormatKind]:
    """The forms of quantized checkpoints that the device runs well; others are dequantized by `auto`.

    On CPUs torch would dequantize them again in each step, several times slower than it multiplies plain weights.
    """
    if runs_triton(device.type):
        return frozenset({"int8", "int4", "fp8"})
    return frozenset({"int8", "int4"}) if is_compiled else frozenset()


def available_bytes(device: torch.device, num_sharing: int = 1) -> int:
    """Memory that is free for weights and KV cache.

    Args:
        device: of this process.
        num_sharing: processes that want as much of it as this one.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // num_sharing
    return available_memory_bytes() // num_sharing


def set_threads() -> int:
    """Give the arithmetic as many threads as this process may use CPUs; returns how many."""
    num_threads = engine_threads(available_cpus())
    torch.set_num_threads(num_threads)
    return num_threads


def bad_configuration(message: str, suggestion: str) -> StartupError:
    """The error for flags that cannot be."""
    return StartupError(ExitCode.BAD_CONFIGURATION, "BadConfiguration", message, suggestion=suggestion)
