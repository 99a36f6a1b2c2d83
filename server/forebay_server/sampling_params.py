"""How the engine picks the tokens of one request; checked when made, never inside a step."""

import math

import msgspec

from forebay_server.errors import InvalidRequestError


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine needs to know to sample; names and ranges are OpenAI's.

    Text (stop strings) is not here: the API process watches for it and aborts.
    """

    max_tokens: int = 16
    """Tokens to generate at most; >= 1."""
    temperature: float = 1.0
    """0 means greedy; 0 <= temperature <= 2."""
    top_p: float = 1.0
    """Smallest set of tokens with this much probability; 0 < top_p <= 1."""
    top_k: int = 0
    """Only the k likeliest tokens; 0 (or -1 on the API) means all."""
    min_p: float = 0.0
    """Drop tokens below this share of the likeliest one's probability; 0 <= min_p <= 1."""
    presence_penalty: float = 0.0
    """Subtracted once from every token generated before; -2 to 2."""
    frequency_penalty: float = 0.0
    """Subtracted for each time that a token was generated; -2 to 2."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens in prompt and answer and multiplies negative ones; 0 < penalty <= 2."""
    logit_bias: dict[int, float] = {}
    """Added to the logits of these tokens; -100 to 100."""
    allowed_token_ids: tuple[int, ...] = ()
    """Only these may be generated; empty: all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that are never generated."""
    seed: int | None = None
    """Key of the random numbers; None: drawn by the API process when the request arrives."""
    stop_token_ids: tuple[int, ...] = ()
    """End the request when one of these is generated; it is reported as the stop reason."""
    eos_token_ids: tuple[int, ...] = ()
    """The model's end-of-sequence tokens (filled in by the API process); nothing with `ignore_eos`."""
    ignore_eos: bool = False
    """Go on past the end-of-sequence tokens."""
    min_tokens: int = 0
    """End-of-sequence and stop tokens are masked before this many are generated."""
    logprobs: int | None = None
    """None: none; 0..20: the chosen token's log-probability and those of the likeliest so many."""
    prompt_logprobs: int | None = None
    """The same for every prompt token but the first; such a prompt is computed in full, whatever is cached."""

    def __post_init__(self) -> None:
        """Check every range.

        Raises:
            InvalidRequestError: naming the first field that is out of range.
        """
        _check(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _check(0 <= self.temperature <= 2, "temperature", self.temperature, "between 0 and 2")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _check(0 <= self.top_k < 2**31, "top_k", self.top_k, "0 (all) or more, and below 2^31")
        _check(0 <= self.min_p <= 1, "min_p", self.min_p, "between 0 and 1")
        for name in ("presence_penalty", "frequency_penalty"):
            value: float = getattr(self, name)
            _check(-2 <= value <= 2 and math.isfinite(value), name, value, "between -2 and 2")
        _check(0 < self.repetition_penalty <= 2, "repetition_penalty", self.repetition_penalty, "above 0 and at most 2")
        for bias in self.logit_bias.values():
            _check(-100 <= bias <= 100, "logit_bias", bias, "between -100 and 100")
        _check(all(self.bad_words), "bad_words", self.bad_words, "sequences of at least one token")
        _check(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, "between 0 and max_tokens")
        for name in ("logprobs", "prompt_logprobs"):
            number: int | None = getattr(self, name)
            _check(number is None or 0 <= number <= 20, name, number, "between 0 and 20")
        self._check_that_a_first_token_is_left()

    def _check_that_a_first_token_is_left(self) -> None:
        """Refuse what could only fail; that nothing is left later on, or with a grammar, shows in the step."""
        forbidden = {word[0] for word in self.bad_words if len(word) == 1}
        if self.min_tokens:
            forbidden.update(self.stop_token_ids, self.eos_token_ids)
        if self.allowed_token_ids and forbidden.issuperset(self.allowed_token_ids):
            raise InvalidRequestError(
                "allowed_token_ids leaves no token to pick: bad_words and min_tokens exclude every one",
                param="allowed_token_ids",
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken (temperature 0, or so small that it is the same)."""
        return self.temperature < 1e-5

    @property
    def looks_back(self) -> bool:
        """Whether the next token depends on the tokens before it by more than the model."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty or self.bad_words)

    @property
    def has_logit_rules(self) -> bool:
        """Whether logits are changed at all before a token is picked."""
        return bool(self.looks_back or self.logit_bias or self.allowed_token_ids or self.min_tokens)

    @property
    def looks_at_logits(self) -> bool:
        """Whether the host does something with the logits: changes them, or tells their log-probabilities."""
        return self.has_logit_rules or self.logprobs is not None or self.prompt_logprobs is not None


def _check(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{name} is {value}; it must be {wanted}", param=name)
