"""A Llama folder as a GGUF file in bfloat16 without a vocabulary, for llama.cpp's quantizer. Runs in our environment.

python -m benchmarks.peers.folder_to_gguf FOLDER OUT.gguf
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors import safe_open

_NUMBERS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "vocab_size": "vocab_size",
}


def main(folder: Path, target: Path) -> None:
    """Write the file, one tensor after another."""
    config = json.loads((folder / "config.json").read_text())
    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama", use_temp_file=False)
    for key, name in _NUMBERS.items():
        writer.add_uint32(f"llama.{name}", config[key])
    writer.add_uint32("llama.attention.value_length", config["head_dim"])
    writer.add_uint32("llama.rope.dimension_count", config["head_dim"])
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    writer.add_float32("llama.rope.freq_base", config["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, weight in _weights(folder):
        new = names.get_name(name, try_suffixes=(".weight",))
        if new is None:
            raise SystemExit(f"{name} has no place in a GGUF file")
        if weight.dim() == 1:
            writer.add_tensor(new, weight.float().numpy())
        else:
            # rows of q and k are not put in llama.cpp's order: of random weights only the speed means anything
            raw = weight.contiguous().view(torch.uint8).numpy().astype(np.uint8, copy=False)
            writer.add_tensor(new, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def _weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                yield name, opened.get_tensor(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
