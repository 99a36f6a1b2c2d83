"""A scheduler with a runner that computes nothing, and what the tests ask of both."""

from forebay_server.engine.block_pool import BlockPool
from forebay_server.engine.limits import SchedulerLimits
from forebay_server.engine.scheduler import Scheduler
from forebay_server.engine.scheduler_output import SampledToken, SchedulerOutput
from forebay_server.messages import AddRequest, RequestOutput, TokenLogprobs
from forebay_server.sampling_params import SamplingParams

BLOCK_SIZE = 4
VOCAB_SIZE = 1000


def make_scheduler(
    num_blocks: int = 40,
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 16,
    max_model_len: int = 200,
    long_prefill_token_threshold: int | None = None,
) -> Scheduler:
    limits = SchedulerLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        long_prefill_token_threshold=long_prefill_token_threshold,
    )
    return Scheduler(limits, BlockPool(num_blocks, BLOCK_SIZE), debug=True, clock=lambda: 0.0)


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    max_tokens: int = 5,
    priority: int = 0,
    arrival_time: float = 0.0,
    cache_salt: str = "",
    tenant: str = "",
    sampling: SamplingParams | None = None,
) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=sampling or SamplingParams(max_tokens=max_tokens, temperature=0),
        priority=priority,
        arrival_time=arrival_time,
        cache_salt=cache_salt,
        tenant=tenant,
    )


class FakeRunner:
    """The next token is a function of all tokens before it, read from the 'cache' that the runner keeps itself.

    So a wrong block table, a block that is shared or freed too early, or a token that was never computed changes the
    answer.
    """

    def __init__(self, num_blocks: int) -> None:
        self._slots = [-1] * (num_blocks * BLOCK_SIZE)
        self._last_tokens: dict[str, int] = {}
        self.num_put_in = 0
        """Tokens that a step had from the step before rather than from the scheduler."""

    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        for block_id in step.new_block_ids:
            self._slots[block_id * BLOCK_SIZE : (block_id + 1) * BLOCK_SIZE] = [-1] * BLOCK_SIZE
        for request in step.requests:
            token_ids = request.token_ids
            if request.is_pending:
                token_ids = [self._last_tokens[request.request_id]]
                self.num_put_in += 1
            for offset, token_id in enumerate(token_ids):
                self._slots[self._slot(request.block_ids, request.context_len + offset)] = token_id
        tokens = {}
        for request in step.requests:
            scores = [TokenLogprobs(-float(token_id), [], []) for token_id in request.scored_token_ids]
            assert request.first_scored_row + len(scores) <= len(request.token_ids)
            if scores:
                tokens[request.request_id] = SampledToken(prompt_logprobs=scores)
            if request.is_sampled:
                length = request.context_len + len(request.token_ids)
                assert request.num_output_tokens == length - request.num_prompt_tokens
                known = [self._slots[self._slot(request.block_ids, position)] for position in range(length)]
                tokens[request.request_id] = SampledToken(next_token(known), prompt_logprobs=scores)
                self._last_tokens[request.request_id] = tokens[request.request_id].token_id
        return tokens

    @staticmethod
    def _slot(block_ids: list[int], position: int) -> int:
        return block_ids[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def next_token(known: list[int]) -> int:
    """What the fake model answers to these tokens."""
    state = 7
    for token_id in known:
        state = (state * 31 + token_id + 1) % 1_000_003
    return state % VOCAB_SIZE


def expected_answer(prompt: list[int], num_tokens: int) -> list[int]:
    known = list(prompt)
    for _ in range(num_tokens):
        known.append(next_token(known))
    return known[len(prompt) :]


def run_to_end(scheduler: Scheduler, runner: FakeRunner, max_steps: int = 10_000) -> dict[str, list[RequestOutput]]:
    """Step until nothing is left: all outputs by request id."""
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(max_steps):
        if not scheduler.has_work:
            return outputs
        step = scheduler.schedule()
        for output in scheduler.commit(step.step_id, runner.run(step)):
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError(f"still busy after {max_steps} steps")


def answer_of(outputs: list[RequestOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]
