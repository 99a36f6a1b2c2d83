"""Texts drawn at random from a grammar, over a vocabulary of single bytes: the most erratic model that could be."""

import random

import llguidance
import numpy as np

END_TOKEN_ID = 256
_VOCAB_SIZE = 257
_LIKELY = frozenset(b'"}],:{[0123456789abcxyz.-T')
_CLOSING = frozenset(b'"}]')


class _Bytes:
    def __init__(self) -> None:
        self.eos_token_id = END_TOKEN_ID
        self.bos_token_id = None
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
        self.special_token_ids = [END_TOKEN_ID]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=_VOCAB_SIZE, eos_token=END_TOKEN_ID)


def allows(grammar: str, text: str) -> bool:
    """Whether a grammar allows exactly this text."""
    matcher = llguidance.LLMatcher(_TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    token_ids = list(text.encode())
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


def random_text(grammar: str, seed: int, *, longest: int = 800) -> str | None:
    """One text that the grammar allows, ended where it allows the end; None: it grew too long."""
    matcher = llguidance.LLMatcher(_TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    generator = random.Random(seed)
    written = bytearray()
    while len(written) < longest:
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        assert not matcher.is_error(), matcher.get_error()
        allowed: list[int] = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:_VOCAB_SIZE]).tolist()
        assert allowed, bytes(written)
        if allowed == [END_TOKEN_ID] or (END_TOKEN_ID in allowed and generator.random() < 0.3):
            return written.decode()
        ordinary = [token_id for token_id in allowed if token_id != END_TOKEN_ID]
        wanted = _CLOSING if len(written) > 100 else _LIKELY
        likely = [token_id for token_id in ordinary if token_id in wanted]
        token_id = generator.choice(likely if likely and generator.random() < 0.9 else ordinary)
        assert matcher.consume_token(token_id), matcher.get_error()
        written.append(token_id)
    return None
