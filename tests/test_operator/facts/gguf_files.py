"""Write small GGUF files for tests, byte by byte, as the specification says."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

Value = int | float | str | Sequence[str]

LLAMA: dict[str, Value] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 512,
    "tokenizer.ggml.tokens": [f"token{index}" for index in range(256)],
}

LLAMA_TENSORS = {
    "token_embd.weight": (64, 256),
    "output_norm.weight": (64,),
    **{
        f"blk.{layer}.{name}.weight": shape
        for layer in range(2)
        for name, shape in {
            "attn_norm": (64,),
            "ffn_norm": (64,),
            "attn_q": (64, 64),
            "attn_k": (64, 32),
            "attn_v": (64, 32),
            "attn_output": (64, 64),
            "ffn_gate": (64, 128),
            "ffn_up": (64, 128),
            "ffn_down": (128, 64),
        }.items()
    },
}


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value] = LLAMA,
    tensors: Mapping[str, tuple[int, ...]] = LLAMA_TENSORS,
    *,
    version: int = 3,
    tensor_type: int = 0,
    missing_bytes: int = 0,
) -> Path:
    """A file whose tensors are float32 zeros (or say that they are of another type), perhaps cut short at the end."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + _value(value)
    offset = 0
    for name, shape in tensors.items():
        head += _string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", size) for size in shape)
        head += struct.pack("<IQ", tensor_type, offset)
        count = 1
        for size in shape:
            count *= size
        offset += -(-count * 4 // 32) * 32
    body = head + b"\0" * (-len(head) % 32) + b"\0" * offset
    path.write_bytes(body[: len(body) - missing_bytes])
    return path


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(item) for item in value)
