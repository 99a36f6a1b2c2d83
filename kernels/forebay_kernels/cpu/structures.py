"""The structures that the C++ library reads, field by field as `source/interface.h` declares them."""

import ctypes

_INT = ctypes.c_int32
_FLOAT = ctypes.c_float
_POINTER = ctypes.c_void_p


class WeightStructure(ctypes.Structure):
    """`Weight`."""

    _fields_ = [
        ("kind", _INT),
        ("group", _INT),
        ("num_outputs", _INT),
        ("num_inputs", _INT),
        ("data", _POINTER),
        ("channel_scales", _POINTER),
        ("scales", _POINTER),
        ("mins", _POINTER),
        ("bias", _POINTER),
    ]


class LayerStructure(ctypes.Structure):
    """`Layer`."""

    _fields_ = [
        ("input_norm", _POINTER),
        ("attention_norm", _POINTER),
        ("query_norm", _POINTER),
        ("key_norm", _POINTER),
        ("qkv", WeightStructure),
        ("output", WeightStructure),
        ("gate_up", WeightStructure),
        ("down", WeightStructure),
        ("window", _INT),
        ("padding", _INT),
    ]


class ModelStructure(ctypes.Structure):
    """`Model`."""

    _fields_ = [
        ("num_layers", _INT),
        ("hidden_size", _INT),
        ("intermediate_size", _INT),
        ("num_heads", _INT),
        ("num_kv_heads", _INT),
        ("head_dim", _INT),
        ("vocab_size", _INT),
        ("cache_kind", _INT),
        ("num_blocks", _INT),
        ("block_size", _INT),
        ("max_tokens", _INT),
        ("num_threads", _INT),
        ("num_positions", _INT),
        ("rotary_dim", _INT),
        ("eps", _FLOAT),
        ("attention_scale", _FLOAT),
        ("layers", ctypes.POINTER(LayerStructure)),
        ("final_norm", _POINTER),
        ("embedding", WeightStructure),
        ("head", WeightStructure),
        ("rotary", _POINTER),
        ("cache", _POINTER),
        ("cache_scales", _POINTER),
    ]


class BatchStructure(ctypes.Structure):
    """`Batch`."""

    _fields_ = [
        ("num_tokens", _INT),
        ("num_sequences", _INT),
        ("num_wanted", _INT),
        ("padding", _INT),
        ("token_ids", _POINTER),
        ("starts", _POINTER),
        ("context_lens", _POINTER),
        ("blocks", _POINTER),
        ("block_offsets", _POINTER),
        ("wanted_rows", _POINTER),
        ("hidden", _POINTER),
        ("logits", _POINTER),
        ("logits_stride", ctypes.c_int64),
        ("best_ids", _POINTER),
        ("best_logits", _POINTER),
    ]


class HeadBatchStructure(ctypes.Structure):
    """`HeadBatch`."""

    _fields_ = [
        ("num_rows", _INT),
        ("padding", _INT),
        ("hidden", _POINTER),
        ("logits", _POINTER),
    ]


class StoredMatrixStructure(ctypes.Structure):
    """`StoredMatrix`."""

    _fields_ = [
        ("kind", _INT),
        ("rows", _INT),
        ("columns", _INT),
        ("group", _INT),
        ("chunk", _INT),
        ("padding", _INT),
        ("numbers", _POINTER),
        ("scales", _POINTER),
        ("zeros", _POINTER),
        ("mins", _POINTER),
    ]


class UnpackedStructure(ctypes.Structure):
    """`Unpacked`."""

    _fields_ = [
        ("kind", _INT),
        ("rows", _INT),
        ("columns", _INT),
        ("chunk", _INT),
        ("numbers", _POINTER),
    ]
