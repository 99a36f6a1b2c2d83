"""Steps on GPUs: one copy of their inputs, CUDA graphs of decodes, sampling where the logits are."""
