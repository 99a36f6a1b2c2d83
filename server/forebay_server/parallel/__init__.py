"""Tensor parallelism: one model over several ranks, each with its share of every layer."""
