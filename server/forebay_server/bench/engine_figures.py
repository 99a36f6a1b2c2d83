"""Times prefill and decoding of one loaded engine, step by step, on random prompts."""

import random
import time
from dataclasses import dataclass

from forebay_server.engine.engine import Engine
from forebay_server.errors import ForebayError
from forebay_server.messages import AddRequest
from forebay_server.sampling_params import SamplingParams


class EngineBenchError(ForebayError):
    """The engine could not do what is measured."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement; the best of its repetitions, since other work on the machine only ever adds time."""

    name: str
    batch_size: int
    num_tokens: int
    seconds: float
    tokens_per_second: float
    step_milliseconds: float
    """Mean time of one step."""


class EngineBench:
    """Runs generations on one engine and times their steps.

    Args:
        engine: loaded and warm, with nothing to do.
        vocab_size: random token ids are below this.
        seed: of the prompts.
    """

    def __init__(self, engine: Engine, vocab_size: int, seed: int) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._random = random.Random(seed)
        self._num_requests = 0

    def prefill(self, prompt_tokens: int, repetitions: int) -> Figure:
        """Tokens a second while one prompt is read, in parts of the step's budget, up to its first token."""
        seconds, steps = min(self._time_prefill(prompt_tokens) for _ in range(repetitions))
        return Figure("prefill", 1, prompt_tokens, seconds, prompt_tokens / seconds, 1000 * seconds / steps)

    def decode(self, batch_size: int, prompt_tokens: int, new_tokens: int, repetitions: int) -> Figure:
        """Tokens a second of all requests together, once every prompt has been read."""
        seconds, steps = min(self._time_decode(batch_size, prompt_tokens, new_tokens) for _ in range(repetitions))
        num_tokens = batch_size * new_tokens
        return Figure("decode", batch_size, num_tokens, seconds, num_tokens / seconds, 1000 * seconds / steps)

    def start(self, batch_size: int, prompt_tokens: int, new_tokens: int) -> int:
        """Queue random prompts and step until each has its first token; returns the steps."""
        self._engine.scheduler.reset_prefix_cache()
        sampling = SamplingParams(max_tokens=new_tokens, temperature=0, ignore_eos=True)
        waiting = set()
        for _ in range(batch_size):
            self._num_requests += 1
            request_id = f"bench-{self._num_requests}"
            prompt = self._random.choices(range(self._vocab_size), k=prompt_tokens)
            self._engine.add(AddRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling))
            waiting.add(request_id)
        steps = 0
        while waiting:
            waiting -= self.step()
            steps += 1
        return steps

    def step(self) -> set[str]:
        """One step of the engine; returns the requests that got a token.

        Raises:
            EngineBenchError: a request failed.
        """
        outputs = self._engine.step()
        for output in outputs:
            if output.error is not None:
                raise EngineBenchError(f"the engine failed: {output.error}")
        return {output.request_id for output in outputs}

    def finish(self) -> int:
        """Step until nothing is left; returns the steps."""
        steps = 0
        while self._engine.has_work:
            self.step()
            steps += 1
        return steps

    def _time_prefill(self, prompt_tokens: int) -> tuple[float, int]:
        started = time.perf_counter()
        steps = self.start(1, prompt_tokens, 1)
        seconds = time.perf_counter() - started
        self.finish()
        return seconds, steps

    def _time_decode(self, batch_size: int, prompt_tokens: int, new_tokens: int) -> tuple[float, int]:
        self.start(batch_size, prompt_tokens, new_tokens + 1)
        started = time.perf_counter()
        steps = self.finish()
        return time.perf_counter() - started, steps
