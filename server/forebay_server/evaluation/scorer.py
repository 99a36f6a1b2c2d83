"""A loaded engine that tells the logits behind every token of a text: through its own scheduler, cache and layers."""

from collections.abc import Sequence
from itertools import count

import torch

from forebay_server.config import EngineConfig
from forebay_server.engine.engine import load_engine
from forebay_server.engine.prompt_scores import watch_scored_logits
from forebay_server.errors import ForebayError
from forebay_server.messages import AddRequest
from forebay_server.sampling_params import SamplingParams


class ScoringError(ForebayError):
    """A text that the engine cannot score."""


class Scorer:
    """One of the two models of an evaluation.

    Args:
        config: of its engine. With small `max_num_batched_tokens` long texts are read in parts, and what a part sees of
            those before it comes out of the KV cache.

    Raises:
        StartupError: the model cannot be loaded.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.engine, self.facts = load_engine(config)
        self._numbers = count()

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[len(token_ids) - 1, vocab_size], float32: row i is what the model says after token i, about token i + 1.

        Raises:
            ScoringError: the engine refuses the text, such as one that is too long.
        """
        sampling = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, prompt_logprobs=0)
        self.engine.scheduler.reset_prefix_cache()
        rows: list[torch.Tensor] = []
        with watch_scored_logits(lambda block: rows.append(block.detach().float().cpu().clone())):
            self._add(list(token_ids), sampling)
            while self.engine.has_work:
                self._step()
        logits = torch.cat(rows)
        if logits.shape[0] != len(token_ids) - 1:
            raise ScoringError(f"the engine computed {logits.shape[0]} rows of logits for {len(token_ids)} tokens")
        return logits

    def continuations(self, prompts: Sequence[list[int]], num_tokens: int) -> list[list[int]]:
        """What the model adds to each prompt greedily, past any end of sequence; many prompts in one step.

        Raises:
            ScoringError: the engine refuses a prompt.
        """
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
        answers: dict[str, list[int]] = {self._add(prompt, sampling): [] for prompt in prompts}
        while self.engine.has_work:
            for request_id, token_ids in self._step():
                answers[request_id] += token_ids
        return list(answers.values())

    def _add(self, prompt: list[int], sampling: SamplingParams) -> str:
        request_id = f"eval-{next(self._numbers)}"
        self.engine.add(AddRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling))
        return request_id

    def _step(self) -> list[tuple[str, list[int]]]:
        outputs = self.engine.step()
        for output in outputs:
            if output.error is not None:
                raise ScoringError(output.error)
        return [(output.request_id, output.token_ids) for output in outputs]
