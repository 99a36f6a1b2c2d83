"""Models that are a shape alone: random weights in a folder that every engine loads. Runs in our environment.

python -m benchmarks.peers.shapes 1b FOLDER TOKENIZER_FOLDER
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from forebay_server.bench.random_checkpoint import write_random_checkpoint

SHAPES: dict[str, dict[str, Any]] = {
    "1b": {  # Llama 3.2 1B
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
}


def main(shape: str, folder: Path, tokenizer_folder: Path) -> None:
    """Write config.json and random weights, and copy a tokenizer, which peers insist on."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        config_file = Path(temporary) / "config.json"
        config_file.write_text(json.dumps(SHAPES[shape]))
        write_random_checkpoint(config_file, partial, seed=0)
    for pattern in ("tokenizer*", "*.jinja"):
        for file in tokenizer_folder.glob(pattern):
            shutil.copyfile(file, partial / file.name)
    partial.rename(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
