"""Reading checkpoints: GGUF files and Hugging Face safetensors folders, checked before anything is allocated."""
