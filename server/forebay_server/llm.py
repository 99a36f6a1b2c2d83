"""LLM: the engine in this process, for offline use and tests; no API, no second process."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from forebay_server.config import EngineConfig
from forebay_server.engine.engine import load_engine
from forebay_server.errors import ForebayError
from forebay_server.messages import AddRequest, FinishReason, Pooling, RequestOutput, TokenLogprobs
from forebay_server.sampling_params import SamplingParams
from forebay_server.text.model_path import locate_model
from forebay_server.text.model_text import ModelText, load_model_text
from forebay_server.text.tokenizer import Tokenizer
from forebay_server.text.vectors import normalized

Message = Mapping[str, object]
"""`role`, `content` and whatever else the chat template reads."""


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
        self._text: ModelText | None = None
        self._request_numbers = count()

    @property
    def text(self) -> ModelText:
        """Tokenizer and chat template, read when first used."""
        if self._text is None:
            self._text = load_model_text(locate_model(self._model))
        return self._text

    def close(self) -> None:
        """End the processes of a model that is divided between several; nothing can be generated afterwards."""
        self.engine.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.text.tokenizer

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
        requests: list[AddRequest] = []
        for prompt, sampling in zip(prompts, every, strict=True):
            requests.append(self._request(prompt, self._with_eos(sampling)))
            generations[requests[-1].request_id] = Generation(requests[-1].prompt_token_ids, [])
        with closing(self._run(requests)) as outputs:
            for output in outputs:
                _note(generations[output.request_id], output)
        for prompt, generation in zip(prompts, generations.values(), strict=True):
            if isinstance(prompt, str):
                generation.text = self.tokenizer.decode(generation.token_ids)
        return list(generations.values())

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[Generation]:
        """Answer conversations, rendered by the model's chat template.

        Args:
            conversations: one conversation, or several; each a list of messages with `role` and `content`.
            sampling_params: as for `generate`.
            add_generation_prompt: end the prompt with the beginning of the assistant's answer.
            chat_template_kwargs: further names for the template.

        Returns:
            Answers with their text, in the order of the conversations.

        Raises:
            GenerationError: the model has no chat template, or a conversation cannot be answered.
            InvalidRequestError: the template refuses the messages.
        """
        template = self.text.chat_template
        if template is None:
            raise GenerationError(f"{self._model} has no chat template; use generate")
        prompts: list[str | list[int]] = [
            template.prompt_token_ids(
                messages, add_generation_prompt=add_generation_prompt, variables=chat_template_kwargs
            )
            for messages in _as_list_of_conversations(conversations)
        ]
        generations = self.generate(prompts, sampling_params)
        for generation in generations:
            generation.text = self.tokenizer.decode(generation.token_ids)
        return generations

    def embed(self, prompts: Sequence[str | list[int]], *, pooling: Pooling = "last") -> list[list[float]]:
        """The final hidden states of prompts as vectors of length 1.

        Args:
            prompts: texts or lists of token ids.
            pooling: the last token's state, or the mean of all.

        Returns:
            [hidden_size] for each prompt, float32.

        Raises:
            GenerationError: one of the prompts cannot be computed, such as one that is too long.
        """
        requests = [self._request(prompt, SamplingParams(max_tokens=1), pooling) for prompt in prompts]
        vectors: dict[str, list[float]] = {}
        with closing(self._run(requests)) as outputs:
            for output in outputs:
                if output.error is not None:
                    raise GenerationError(output.error)
                vectors[output.request_id] = normalized(output.embedding or []).tolist()
        return [vectors[request.request_id] for request in requests]

    def _request(self, prompt: str | list[int], sampling: SamplingParams, pooling: Pooling | None = None) -> AddRequest:
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return AddRequest(
            request_id=f"offline-{next(self._request_numbers)}",
            prompt_token_ids=token_ids,
            sampling=sampling,
            pooling=pooling,
        )

    def _run(self, requests: Sequence[AddRequest]) -> Generator[RequestOutput]:
        """Run requests to their ends; who is left after an error or Ctrl-C is dropped, with the news of them."""
        for request in requests:
            self.engine.add(request)
        try:
            while self.engine.has_work:
                yield from self.engine.step()
        finally:
            self.engine.abort(request.request_id for request in requests)
            while self.engine.has_work:
                self.engine.step()

    def _with_eos(self, sampling: SamplingParams) -> SamplingParams:
        if sampling.eos_token_ids or sampling.ignore_eos:
            return sampling
        return msgspec.structs.replace(sampling, eos_token_ids=self.facts.model_config.eos_token_ids)


def _as_list_of_conversations(
    conversations: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    alone = [item for item in conversations if isinstance(item, Mapping)]
    return [alone] if alone else [item for item in conversations if not isinstance(item, Mapping)]


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
