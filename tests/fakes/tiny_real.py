"""A model with weights and a tokenizer, small enough to serve in a test; random, but all parts show in its answers."""

from pathlib import Path

from tests.fakes.tiny_model import END_TOKEN_ID, VOCAB_SIZE, write_tiny_model
from tests.test_server.models.tiny_llama import save_tiny_llama


def write_tiny_real_model(folder: Path, *, context_tokens: int = 4096) -> Path:
    """Write the folder and return it."""
    write_tiny_model(folder)
    return save_tiny_llama(
        folder, vocab_size=VOCAB_SIZE, eos_token_id=END_TOKEN_ID, max_position_embeddings=context_tokens, seed=4
    )
