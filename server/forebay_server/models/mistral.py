"""Mistral (Jiang et al. 2023, arXiv:2310.06825): Llama, whose layers see a sliding window where the config has one."""

from forebay_server.models.llama import LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """`ModelConfig.sliding_windows` is all the difference."""
