"""Kernels: each hot operation once in plain PyTorch (the definition) and once in Triton."""
