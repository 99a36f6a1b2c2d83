"""The parts that decoders are built of, each as the matrices that it holds."""

from forebay_operator.facts.config_reader import ConfigReader
from forebay_operator.facts.model_facts import TensorGroup


def attention(
    config: ConfigReader,
    layers: int,
    head_dim: int,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    quantizable: bool = True,
) -> list[TensorGroup]:
    """Multi-head or grouped-query attention: q, k, v and o, with what hangs on them."""
    hidden, heads, kv_heads = config.size("hidden_size"), config.size("num_attention_heads"), num_kv_heads(config)
    q_rows, kv_rows = heads * head_dim, kv_heads * head_dim
    groups = [
        TensorGroup(name="q_proj", layers=layers, rows=q_rows, cols=hidden, split="heads", quantizable=quantizable),
        TensorGroup(name="kv_proj", layers=layers, copies=2, rows=kv_rows, cols=hidden, split="kv_heads",
                    quantizable=quantizable),
        TensorGroup(name="o_proj", layers=layers, rows=hidden, cols=q_rows, split="head_cols", quantizable=quantizable),
    ]  # fmt: skip
    if qkv_bias:
        groups.append(TensorGroup(name="q_bias", layers=layers, rows=q_rows, cols=1, split="heads"))
        groups.append(TensorGroup(name="kv_bias", layers=layers, copies=2, rows=kv_rows, cols=1, split="kv_heads"))
    if out_bias:
        groups.append(TensorGroup(name="o_bias", layers=layers, rows=hidden, cols=1))
    if qk_norm:
        groups.append(TensorGroup(name="qk_norm", layers=layers, copies=2, rows=head_dim, cols=1))
    return groups


def num_kv_heads(config: ConfigReader) -> int:
    """KV heads; as many as heads when the key is missing.

    Raises:
        FactsError: heads are not a multiple of KV heads.
    """
    heads = config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"must divide {heads} attention heads, not be {kv_heads}")
    return kv_heads


def head_dim(config: ConfigReader, default: int | None = None) -> int:
    """Numbers of one head: said, or hidden size ÷ heads.

    Raises:
        FactsError: not said, and heads do not divide the hidden size.
    """
    if config.has("head_dim"):
        return config.size("head_dim")
    if default is not None:
        return default
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if hidden % heads:
        raise config.error("head_dim", f"is missing, and {heads} heads do not divide hidden size {hidden}")
    return hidden // heads


def mlp(layers: int, hidden: int, intermediate: int, *, name: str = "", bias: bool = False) -> list[TensorGroup]:
    """A gated feed-forward part: gate, up and down."""
    groups = [
        TensorGroup(name=f"{name}gate_up_proj", layers=layers, copies=2, rows=intermediate, cols=hidden, split="rows",
                    quantizable=True),
        TensorGroup(name=f"{name}down_proj", layers=layers, rows=hidden, cols=intermediate, split="cols",
                    quantizable=True),
    ]  # fmt: skip
    if bias:
        groups.append(
            TensorGroup(name=f"{name}gate_up_bias", layers=layers, copies=2, rows=intermediate, cols=1, split="rows")
        )
        groups.append(TensorGroup(name=f"{name}down_bias", layers=layers, rows=hidden, cols=1))
    return groups


def experts(
    layers: int, hidden: int, intermediate: int, num_experts: int, per_token: int, *, bias: bool = False
) -> list[TensorGroup]:
    """A mixture of experts with its router; each expert is cut by tensor parallelism like a feed-forward part."""
    groups = [
        TensorGroup(name="router", layers=layers, rows=num_experts, cols=hidden),
        TensorGroup(name="experts.gate_up_proj", layers=layers, copies=2 * num_experts, active=2 * per_token,
                    rows=intermediate, cols=hidden, split="rows", quantizable=True),
        TensorGroup(name="experts.down_proj", layers=layers, copies=num_experts, active=per_token,
                    rows=hidden, cols=intermediate, split="cols", quantizable=True),
    ]  # fmt: skip
    if bias:
        groups += [
            TensorGroup(name="router_bias", layers=layers, rows=num_experts, cols=1),
            TensorGroup(name="experts.gate_up_bias", layers=layers, copies=2 * num_experts, active=2 * per_token,
                        rows=intermediate, cols=1, split="rows"),
            TensorGroup(name="experts.down_bias", layers=layers, copies=num_experts, active=per_token,
                        rows=hidden, cols=1),
        ]  # fmt: skip
    return groups


def latent_attention(config: ConfigReader, layers: int) -> list[TensorGroup]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): low-rank q and kv."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    rope, nope, value = (config.size(k) for k in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    kv_rank = config.size("kv_lora_rank")
    q_rows = heads * (nope + rope)
    groups = []
    if config.has("q_lora_rank"):
        q_rank = config.size("q_lora_rank")
        groups += [
            TensorGroup(name="q_a_proj", layers=layers, rows=q_rank, cols=hidden, quantizable=True),
            TensorGroup(name="q_a_norm", layers=layers, rows=q_rank, cols=1),
            TensorGroup(name="q_b_proj", layers=layers, rows=q_rows, cols=q_rank, split="heads", quantizable=True),
        ]
    else:
        groups.append(
            TensorGroup(name="q_proj", layers=layers, rows=q_rows, cols=hidden, split="heads", quantizable=True)
        )
    return [
        *groups,
        TensorGroup(name="kv_a_proj", layers=layers, rows=kv_rank + rope, cols=hidden, quantizable=True),
        TensorGroup(name="kv_a_norm", layers=layers, rows=kv_rank, cols=1),
        TensorGroup(name="kv_b_proj", layers=layers, rows=heads * (nope + value), cols=kv_rank, split="heads",
                    quantizable=True),
        TensorGroup(name="o_proj", layers=layers, rows=hidden, cols=heads * value, split="head_cols", quantizable=True),
    ]  # fmt: skip


def ends(config: ConfigReader, layers: int, norms_per_layer: int, *, tied: bool) -> list[TensorGroup]:
    """What stands before, between and after the layers: embedding, norms, head."""
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    groups = [
        TensorGroup(name="embed_tokens", rows=vocab, cols=hidden, split="vocab"),
        TensorGroup(name="layer_norms", layers=layers, copies=norms_per_layer, rows=hidden, cols=1),
        TensorGroup(name="norm", rows=hidden, cols=1),
    ]
    return groups if tied else [*groups, TensorGroup(name="lm_head", rows=vocab, cols=hidden, split="vocab")]
