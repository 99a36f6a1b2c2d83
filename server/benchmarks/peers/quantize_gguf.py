"""A GGUF file in another format by llama.cpp's own quantizer; runs in the environment of llama.cpp.

python -m benchmarks.peers.quantize_gguf MODEL.gguf OUT.gguf Q8_0
"""

import sys
from pathlib import Path

import llama_cpp


def main(source: Path, target: Path, file_type: str) -> int:
    """Write the file; the status of llama.cpp."""
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.allow_requantize = True
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    partial = target.with_suffix(".partial")
    status: int = llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), settings)
    if status == 0:
        partial.rename(target)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
