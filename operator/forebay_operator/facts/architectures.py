"""One function a family of architectures: its configuration to the facts of the model."""

from collections.abc import Callable
from typing import get_args

from forebay_operator.facts import layers as parts
from forebay_operator.facts.config_reader import ConfigReader
from forebay_operator.facts.model_facts import Checkpoint, CheckpointFormat, Dtype, KVLayers, ModelFacts, TensorGroup

UNQUANTIZED: dict[Dtype, CheckpointFormat] = {"float32": "float32", "bfloat16": "bf16", "float16": "fp16"}


def model_facts(config: ConfigReader, checkpoint: Checkpoint | None = None) -> ModelFacts:
    """The facts of the model that a configuration describes.

    Args:
        config: keys as `config.json` spells them.
        checkpoint: the files; None: unquantized, in the configuration's dtype, sizes not known.

    Raises:
        FactsError: the architecture is not known, or a key is missing or wrong; names file and key.
    """
    model_type = config.text("model_type")
    family = FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise config.error("model_type", f"is {model_type!r}, an architecture that is not known; known: {known}")
    if isinstance(config.data.get("text_config"), dict):
        of_all = {key: config.data[key] for key in ("tie_word_embeddings",) if config.has(key)}
        values = {"model_type": model_type, **config.data["text_config"], **of_all}
        config = ConfigReader(values, f"{config.source} text_config")
    return family(config, checkpoint or Checkpoint(container="none", format=UNQUANTIZED[dtype(config)]))


def dtype(config: ConfigReader) -> Dtype:
    """The configuration's `torch_dtype` (newer: `dtype`); bfloat16 when it does not say."""
    key = "dtype" if config.has("dtype") else "torch_dtype"
    value = config.text(key, "bfloat16")
    for known in get_args(Dtype):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise config.error(key, f"must be one of {', '.join(get_args(Dtype))}, not {value!r}")


def _llama(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """Llama 2 and 3, SmolLM, TinyLlama and everything that calls itself llama."""
    bias = config.flag("attention_bias", False)
    return _dense(config, checkpoint, qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias", False))


def _mistral(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """Mistral: every layer has the window, where there is one."""
    return _dense(config, checkpoint, sliding_layers=_all_if_window(config))


def _qwen2(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """Qwen2 and 2.5: biases on q, k and v."""
    return _dense(config, checkpoint, qkv_bias=True, sliding_layers=_qwen_sliding_layers(config))


def _qwen3(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """Qwen3: norms on q and k, heads of 128."""
    bias = config.flag("attention_bias", False)
    sliding = _qwen_sliding_layers(config)
    return _dense(config, checkpoint, qkv_bias=bias, out_bias=bias, qk_norm=True, head_dim=128, sliding_layers=sliding)


def _gemma2(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """Gemma 2: four norms a layer, every other layer with the window, tied."""
    num_layers = config.size("num_hidden_layers")
    sliding = _counted_layer_types(config, (num_layers + 1) // 2)
    return _dense(config, checkpoint, head_dim=256, norms=4, tied=True, sliding_layers=sliding)


def _gemma3(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """Gemma 3, text part: five layers with the window, then one without; norms on q and k.

    Published configurations leave out what equals the defaults of their class, so these stand here.
    """
    defaults = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
                "max_position_embeddings": 131_072, "sliding_window": 4096}  # fmt: skip
    config = ConfigReader({**defaults, **config.data}, config.source)
    num_layers, pattern = config.size("num_hidden_layers"), config.size("sliding_window_pattern", 6)
    sliding = _counted_layer_types(config, num_layers - num_layers // pattern)
    return _dense(config, checkpoint, head_dim=256, norms=4, qk_norm=True, tied=True, sliding_layers=sliding)


def _phi3(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """Phi-3 and Phi-4: fused on disk, the same numbers as Llama."""
    return _dense(config, checkpoint, sliding_layers=_all_if_window(config))


def _smollm3(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """SmolLM3: Llama in which every fourth layer has no rotary positions, and a window where one is asked for; tied."""
    bias = config.flag("attention_bias", False)
    sliding = config.size("num_hidden_layers") // config.size("no_rope_layer_interval", 4)
    return _dense(
        config,
        checkpoint,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        tied=True,
        sliding_layers=_counted_layer_types(config, sliding) if config.flag("use_sliding_window", False) else 0,
    )


def _mixtral(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """Mixtral: every layer a mixture of experts."""
    num_layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    per_token, width = config.size("num_experts_per_tok"), config.size("intermediate_size")
    groups = parts.experts(num_layers, hidden, width, config.size("num_local_experts"), per_token)
    sliding = _all_if_window(config)
    return _dense(config, checkpoint, feed_forward=groups, widest=per_token * width, sliding_layers=sliding)


def _qwen_moe(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """Qwen2-MoE (with a shared expert behind a gate) and Qwen3-MoE (without)."""
    num_layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    step, dense_only = config.size("decoder_sparse_step", 1), config.items("mlp_only_layers")
    sparse = sum(1 for layer in range(num_layers) if layer not in dense_only and (layer + 1) % step == 0)
    per_token, width = config.size("num_experts_per_tok"), config.size("moe_intermediate_size")
    groups = parts.experts(sparse, hidden, width, config.size("num_experts"), per_token) if sparse else []
    widest = per_token * width
    is_qwen2 = config.text("model_type") == "qwen2_moe"
    if is_qwen2:
        shared = config.size("shared_expert_intermediate_size")
        groups += parts.mlp(sparse, hidden, shared, name="shared_expert.")
        groups.append(TensorGroup(name="shared_expert_gate", layers=sparse, rows=1, cols=hidden))
        widest += shared
    if sparse < num_layers:
        groups += parts.mlp(num_layers - sparse, hidden, config.size("intermediate_size"))
        widest = max(widest, config.size("intermediate_size"))
    return _dense(
        config,
        checkpoint,
        qkv_bias=is_qwen2 or config.flag("attention_bias", False),
        out_bias=not is_qwen2 and config.flag("attention_bias", False),
        qk_norm=not is_qwen2,
        feed_forward=groups,
        widest=widest,
        sliding_layers=_qwen_sliding_layers(config),
    )


def _gpt_oss(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """GPT-OSS: biases everywhere, a sink a head, every other layer with the window; only experts are MXFP4."""
    num_layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    heads, width = config.size("num_attention_heads"), config.size("intermediate_size")
    per_token = config.size("num_experts_per_tok", 4)
    groups = parts.experts(num_layers, hidden, width, config.size("num_local_experts"), per_token, bias=True)
    groups.append(TensorGroup(name="sinks", layers=num_layers, rows=heads, cols=1, split="heads"))
    return _dense(
        config,
        checkpoint,
        qkv_bias=True,
        out_bias=True,
        head_dim=64,
        quantizable_attention=False,
        feed_forward=groups,
        widest=per_token * width,
        sliding_layers=_counted_layer_types(config, (num_layers + 1) // 2),
    )


def _deepseek(config: ConfigReader, checkpoint: Checkpoint) -> ModelFacts:
    """DeepSeek-V2 and V3: latent attention, dense layers first, then routed and shared experts."""
    num_layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    dense = min(config.size("first_k_dense_replace", 0, minimum=0), num_layers)
    sparse = num_layers - dense
    num_experts, per_token = config.size("n_routed_experts"), config.size("num_experts_per_tok")
    width = config.size("moe_intermediate_size")
    shared = width * config.size("n_shared_experts", 0, minimum=0)
    groups = parts.latent_attention(config, num_layers)
    if dense:
        groups += parts.mlp(dense, hidden, config.size("intermediate_size"))
    if sparse:
        groups += parts.experts(sparse, hidden, width, num_experts, per_token)
        if config.text("model_type") == "deepseek_v3":
            groups.append(TensorGroup(name="router_bias", layers=sparse, rows=num_experts, cols=1))
        if shared:
            groups += parts.mlp(sparse, hidden, shared, name="shared_experts.")
    tied = config.flag("tie_word_embeddings", False)
    rank = config.size("kv_lora_rank") + config.size("qk_rope_head_dim")
    return ModelFacts(
        architecture=config.text("model_type"),
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=config.size("num_attention_heads"),
        num_kv_heads=1,
        head_dim=config.size("qk_nope_head_dim") + config.size("qk_rope_head_dim"),
        intermediate_size=max(config.size("intermediate_size", 1), per_token * width + shared),
        vocab_size=config.size("vocab_size"),
        max_positions=config.size("max_position_embeddings"),
        dtype=dtype(config),
        tied_embeddings=tied,
        tensors=(*groups, *parts.ends(config, num_layers, 2, tied=tied)),
        kv_layers=(KVLayers(layers=num_layers, kind="latent", num_kv_heads=1, head_dim=rank),),
        checkpoint=checkpoint,
    )


def _dense(
    config: ConfigReader,
    checkpoint: Checkpoint,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    head_dim: int | None = None,
    norms: int = 2,
    tied: bool = False,
    quantizable_attention: bool = True,
    feed_forward: list[TensorGroup] | None = None,
    widest: int = 0,
    sliding_layers: int = 0,
) -> ModelFacts:
    """A decoder with ordinary attention; `feed_forward` and `widest` stand for other parts than gate, up, down."""
    num_layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    size = parts.head_dim(config, head_dim)
    groups = parts.attention(
        config,
        num_layers,
        size,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=qk_norm,
        quantizable=quantizable_attention,
    )
    if feed_forward is None:
        widest = config.size("intermediate_size")
        feed_forward = parts.mlp(num_layers, hidden, widest, bias=mlp_bias)
    tied = config.flag("tie_word_embeddings", tied)
    kv_heads = parts.num_kv_heads(config)
    max_positions = config.size("max_position_embeddings")
    window = config.size("sliding_window", max_positions, minimum=0) or max_positions
    if window >= max_positions:
        sliding_layers = 0
    kv_layers = [KVLayers(layers=num_layers - sliding_layers, kind="full", num_kv_heads=kv_heads, head_dim=size)]
    kv_layers.append(
        KVLayers(layers=sliding_layers, kind="sliding", num_kv_heads=kv_heads, head_dim=size, window=window)
    )
    return ModelFacts(
        architecture=config.text("model_type"),
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=config.size("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_dim=size,
        intermediate_size=widest,
        vocab_size=config.size("vocab_size"),
        max_positions=max_positions,
        dtype=dtype(config),
        tied_embeddings=tied,
        tensors=(*groups, *feed_forward, *parts.ends(config, num_layers, norms, tied=tied)),
        kv_layers=tuple(kind for kind in kv_layers if kind.layers),
        checkpoint=checkpoint,
    )


def _all_if_window(config: ConfigReader) -> int:
    """All layers when a window is set, else none."""
    return config.size("num_hidden_layers") if config.has("sliding_window") else 0


def _qwen_sliding_layers(config: ConfigReader) -> int:
    """Layers from `max_window_layers` on, when windows are switched on at all."""
    if not config.flag("use_sliding_window", False):
        return 0
    num_layers = config.size("num_hidden_layers")
    return _counted_layer_types(config, max(0, num_layers - config.size("max_window_layers", num_layers, minimum=0)))


def _counted_layer_types(config: ConfigReader, default: int) -> int:
    """Layers that `layer_types` calls sliding; `default` when the list is missing."""
    kinds = config.items("layer_types")
    if not kinds:
        return default
    if len(kinds) != config.size("num_hidden_layers"):
        raise config.error("layer_types", f"has {len(kinds)} entries for {config.size('num_hidden_layers')} layers")
    return kinds.count("sliding_attention")


FAMILIES: dict[str, Callable[[ConfigReader, Checkpoint], ModelFacts]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mistral3": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "smollm3": _smollm3,
}
"""`model_type` of config.json to the function that reads it."""
