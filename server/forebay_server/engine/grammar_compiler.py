"""Compile grammars against the model's vocabulary, in threads beside the step loop.

The compiler (llguidance) lets go of Python's lock while it works, bounds its own work, and makes masks lazily, so that
compiling takes milliseconds. What it needs of the model's text files is read when the first grammar comes.
"""

import logging
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import llguidance

from forebay_server.text.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)

COMPILE_TIMEOUT_SECONDS = 20.0
"""From the request's arrival in the engine to a compiled grammar, reading the vocabulary included."""
MAX_CACHED_GRAMMARS = 128
_MAX_ALTERNATIVES = 20_000
"""At one place of a text, such as optional properties that may come next; the library's own limit is 2,000."""
_NUM_THREADS = 2


class GrammarError(Exception):
    """A grammar that cannot be compiled or followed; the message is for the client."""


class _Vocabulary:
    """The tokenizer as the compiler wants to see it: as wide as the logits, the ids without a text being special."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        known = tokenizer.token_bytes.by_id[:vocab_size]
        padded = [*known, *[b""] * (vocab_size - len(known))]
        self.tokens = [text or b"<unused %d>" % token_id for token_id, text in enumerate(padded)]
        unused = {token_id for token_id, text in enumerate(padded) if not text}
        special = {token_id for token_id in tokenizer.special_token_ids if token_id < vocab_size}
        self.special_token_ids = sorted(special | unused)
        self.eos_token_id = tokenizer.eos_token_ids[0]

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode_ordinary(text.decode() if isinstance(text, bytes) else text)


class GrammarCompiler:
    """Grammars of one model; keeps the ones used last.

    Args:
        model: a GGUF file or a folder, as `--model` says.
        vocab_size: width of the model's logits.
    """

    def __init__(self, model: str, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "grammar")
        self._cache: OrderedDict[str, Future[llguidance.LLMatcher]] = OrderedDict()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Of the model; read when first needed."""
        from forebay_server.text.model_path import locate_model
        from forebay_server.text.model_text import load_model_text

        return load_model_text(locate_model(self._model)).tokenizer

    @cached_property
    def _library_tokenizer(self) -> llguidance.LLTokenizer:
        if not self.tokenizer.eos_token_ids:
            raise GrammarError("the model has no end-of-sequence token, without which no constrained text can end")
        eos_token_ids = list(self.tokenizer.eos_token_ids)
        vocabulary = llguidance.TokenizerWrapper(_Vocabulary(self.tokenizer, self._vocab_size))
        return llguidance.LLTokenizer(vocabulary, eos_token=eos_token_ids)

    def compile(self, text: str) -> "Future[llguidance.LLMatcher]":
        """A matcher at the start of the grammar; copy it before use.

        Called by the step loop alone. The future's exception is a `GrammarError` when the grammar is to blame.
        """
        future = self._cache.get(text)
        if future is None or (future.done() and future.exception() is not None):
            future = self._threads.submit(self._compile, text)
            self._cache[text] = future
            if len(self._cache) > MAX_CACHED_GRAMMARS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(text)
        return future

    def _compile(self, text: str) -> llguidance.LLMatcher:
        start = time.monotonic()
        limits = llguidance.LLParserLimits(max_items_in_row=_MAX_ALTERNATIVES, verbose_errors=False)
        matcher = llguidance.LLMatcher(self._library_tokenizer, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarError(matcher.get_error().split("<state>")[0].strip()[:300])
        _logger.debug("a grammar of %d characters took %.3f s", len(text), time.monotonic() - start)
        return matcher

    def close(self) -> None:
        """End the threads when their work is done; what has not begun is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class Compilation:
    """A request that waits for its grammar."""

    future: "Future[llguidance.LLMatcher]"
    deadline: float
    """CLOCK_MONOTONIC seconds."""
