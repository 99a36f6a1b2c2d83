"""A GGUF file as a bfloat16 folder that every engine loads; runs in our environment.

python -m benchmarks.peers.convert_model MODEL.gguf FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(source: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer's files."""
    model = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.bfloat16)
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config |= {"architectures": [type(model).__name__], "dtype": "bfloat16"}
    folder.mkdir(parents=True, exist_ok=True)
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(folder)
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    if not config.get("tie_word_embeddings", False):
        weights["lm_head.weight"] = model.state_dict()["lm_head.weight"].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # last: its presence says all is there


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
