"""What prefill and decode attention share in Triton: reading a tile of paged keys or values, and the online softmax.

Milakov and Gimelshein 2018, arXiv:1805.02867 (online softmax); Dao 2023, arXiv:2307.08691 (FlashAttention-2).
"""

import triton
import triton.language as tl

from forebay_kernels.gpu.eight_bits import PLAIN, dequantize

LOG2_E = 1.4426950408889634
"""Scores are multiplied with this, for exp(x) = exp2(x · log2 e) and GPUs have exp2 in hardware."""

_HIDDEN = tl.constexpr(-1.0e30)
"""Score of a key that is not seen. Finite: a row whose first tile is all hidden must not compute infinity - infinity.
What such a tile adds is multiplied with exp2(-1e30 - score) = 0 as soon as a visible key comes."""


@triton.jit  # type: ignore[untyped-decorator]
def cached_tile(  # type: ignore[no-untyped-def]
    key_cache_ptr,
    value_cache_ptr,
    key_scales_ptr,
    value_scales_ptr,
    block_table_ptr,
    offs_n,
    is_token,
    offs_d,
    in_head,
    kv_head,
    num_kv_heads,
    head_dim,
    FORMAT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Read the tokens offs_n of one sequence's cache, those that is_token says are there.

    Returns:
        key: [BLOCK_D, BLOCK_N], as stored.
        value: [BLOCK_N, BLOCK_D], as stored.
        key_scale: [BLOCK_N], float32; something else where FORMAT is PLAIN.
        value_scale: as key_scale.
    """
    blocks = tl.load(block_table_ptr + offs_n // BLOCK_SIZE, mask=is_token, other=0).to(tl.int64)
    rows = (blocks * BLOCK_SIZE + offs_n % BLOCK_SIZE) * num_kv_heads + kv_head
    key = tl.load(
        key_cache_ptr + rows[None, :] * head_dim + offs_d[:, None],
        mask=is_token[None, :] & in_head[:, None],
        other=0,
    )
    value = tl.load(
        value_cache_ptr + rows[:, None] * head_dim + offs_d[None, :],
        mask=is_token[:, None] & in_head[None, :],
        other=0,
    )
    key_scale = rows
    value_scale = rows
    if FORMAT != PLAIN:
        key_scale = tl.load(key_scales_ptr + rows, mask=is_token, other=0.0)
        value_scale = tl.load(value_scales_ptr + rows, mask=is_token, other=0.0)
    return key, value, key_scale, value_scale


@triton.jit  # type: ignore[untyped-decorator]
def update(  # type: ignore[no-untyped-def]
    acc,
    m_i,
    l_i,
    query,
    key,
    value,
    key_scale,
    value_scale,
    is_visible,
    scale,
    soft_cap,
    FORMAT: tl.constexpr,
    DTYPE: tl.constexpr,
    DOT: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Take one tile of keys and values into the running softmax of BLOCK_M rows.

    Returns acc, m_i and l_i with the tile in them, and the tile's weights, exp2(score - m_i), [BLOCK_M, BLOCK_N].

    Args:
        acc: [BLOCK_M, BLOCK_D], float32: sum of exp2(score - m_i) · value.
        m_i: [BLOCK_M], float32: largest score.
        l_i: [BLOCK_M], float32: sum of exp2(score - m_i).
        query: [BLOCK_M, BLOCK_D], DOT.
        key: [BLOCK_D, BLOCK_N] as stored.
        value: [BLOCK_N, BLOCK_D] as stored.
        key_scale: [BLOCK_N], float32; unused where FORMAT is PLAIN.
        value_scale: as key_scale.
        is_visible: [BLOCK_M, BLOCK_N]; unused unless IS_MASKED.
        scale: of the scores, log2 e included.
        soft_cap: of the scores, log2 e included.
        FORMAT: of key and value.
        DTYPE: what key, value and weights are rounded to before they are multiplied.
        DOT: what they are multiplied as.
        HAS_SOFT_CAP: whether there is one.
        IS_MASKED: whether some rows do not see some keys.
    """
    scores = tl.dot(query, dequantize(key, FORMAT, DTYPE).to(DOT), input_precision="ieee") * scale
    if FORMAT != PLAIN:
        scores = scores * key_scale[None, :]
    if HAS_SOFT_CAP:
        # tanh(x) = 1 - 2 / (1 + exp(2x)); exp(2x) = exp2(2x · log2 e), and the log2 e within both cancels.
        scores = soft_cap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * scores / soft_cap)))
    if IS_MASKED:
        scores = tl.where(is_visible, scores, _HIDDEN)
    new_m_i = tl.maximum(m_i, tl.max(scores, 1))
    weights = tl.exp2(scores - new_m_i[:, None])
    shrink = tl.exp2(m_i - new_m_i)
    l_i = l_i * shrink + tl.sum(weights, 1)
    scaled_weights = weights
    if FORMAT != PLAIN:
        scaled_weights = weights * value_scale[None, :]
    acc = acc * shrink[:, None]
    acc = tl.dot(
        scaled_weights.to(DTYPE).to(DOT), dequantize(value, FORMAT, DTYPE).to(DOT), acc, input_precision="ieee"
    )
    return acc, new_m_i, l_i, weights
