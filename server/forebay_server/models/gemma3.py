"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786), text only: Gemma 2 with normed heads and two rotary bases."""

from forebay_server.layers.norm import GemmaRMSNorm
from forebay_server.models.gemma2 import Gemma2ForCausalLM


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """Layers with a window turn at a rate of their own: `ModelConfig.local_rope_theta`."""

    head_norm = GemmaRMSNorm
