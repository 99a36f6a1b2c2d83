"""LLM: the engine in this process, for offline use and tests; no API, no second process."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from forebay_server.config import EngineConfig
from forebay_server.engine.engine import load_engine
from forebay_server.errors import ForebayError
from forebay_server.messages import AddRequest, FinishReason, RequestOutput, TokenLogprobs
from forebay_server.sampling_params import SamplingParams
from forebay_server.text.model_text import load_model_text, locate_model
from forebay_server.text.tokenizer import Tokenizer


class GenerationError(ForebayError):
    """A prompt that could not be answered."""


@dataclass(slots=True)
class Generation:
    """The answer to one prompt."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    """Generated; the end-of-sequence token included."""
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry for each generated token, when asked for."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """One entry for each prompt token but the first, when asked for."""
    text: str | None = None
    """The answer without control tokens, for prompts given as text."""


class LLM:
    """A loaded model.

    Args:
        model: a GGUF file, or a folder (see `EngineConfig.model`).
        debug: check the scheduler's books after every change.
        **engine_options: other fields of `EngineConfig`.

    Raises:
        StartupError: the model cannot be loaded.
    """

    def __init__(self, model: str, *, debug: bool = False, **engine_options: Any) -> None:
        self.engine, self.facts = load_engine(EngineConfig(model=model, **engine_options), debug=debug)
        self._model = model
        self._tokenizer: Tokenizer | None = None
        self._request_numbers = count()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, read when first used."""
        if self._tokenizer is None:
            self._tokenizer = load_model_text(locate_model(self._model)).tokenizer
        return self._tokenizer

    def generate(
        self,
        prompts: Sequence[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Generation]:
        """Answer prompts, all at once as far as the engine's limits go.

        Args:
            prompts: texts (taken as they are: no chat template) or lists of token ids.
            sampling_params: one for all, or one for each; its `eos_token_ids` default to the model's.

        Returns:
            Answers in the order of the prompts.

        Raises:
            GenerationError: one of the prompts cannot be answered, such as one that is too long.
            ValueError: not as many sampling_params as prompts.
        """
        params = sampling_params or SamplingParams()
        every = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        generations: dict[str, Generation] = {}
        for prompt, sampling in zip(prompts, every, strict=True):
            request_id = f"offline-{next(self._request_numbers)}"
            token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            generations[request_id] = Generation(token_ids, [])
            self.engine.add(
                AddRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=self._with_eos(sampling))
            )
        try:
            while self.engine.has_work:
                for output in self.engine.step():
                    _note(generations[output.request_id], output)
        finally:
            self._end(generations)
        for prompt, generation in zip(prompts, generations.values(), strict=True):
            if isinstance(prompt, str):
                generation.text = self.tokenizer.decode(generation.token_ids)
        return list(generations.values())

    def _end(self, request_ids: Iterable[str]) -> None:
        """Drop whoever is left after an error or Ctrl-C, with the news of them."""
        self.engine.abort(request_ids)
        while self.engine.has_work:
            self.engine.step()

    def _with_eos(self, sampling: SamplingParams) -> SamplingParams:
        if sampling.eos_token_ids or sampling.ignore_eos:
            return sampling
        return msgspec.structs.replace(sampling, eos_token_ids=self.facts.model_config.eos_token_ids)


def _note(generation: Generation, output: RequestOutput) -> None:
    if output.error is not None:
        raise GenerationError(output.error)
    generation.token_ids.extend(output.token_ids)
    generation.finish_reason = output.finish_reason
    if output.prompt_logprobs is not None:
        generation.prompt_logprobs = output.prompt_logprobs
    generation.num_cached_tokens = output.num_cached_tokens
    if output.logprobs is not None:
        generation.logprobs = (generation.logprobs or []) + output.logprobs
