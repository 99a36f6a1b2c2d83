"""A model with weights and a tokenizer, small enough to serve in a test; random, but all parts show in its answers."""

from pathlib import Path

from tests.fakes.tiny_model import END_TOKEN_ID, VOCAB_SIZE, write_tiny_model
from tests.test_server.models.tiny_llama import save_tiny_llama


def write_tiny_real_model(folder: Path) -> Path:
    """Write the folder and return it."""
    write_tiny_model(folder)
    return save_tiny_llama(
        folder, vocab_size=VOCAB_SIZE, eos_token_id=END_TOKEN_ID, max_position_embeddings=4096, seed=4
    )
