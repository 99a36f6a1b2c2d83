"""The runner of rank 0 of a divided model: tells the other ranks each step, computes its part, and gets the tokens."""

import torch

from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.model_runner import in_batch_order
from forebay_server.engine.scheduler_output import SampledToken, SchedulerOutput
from forebay_server.errors import ExitCode, StartupError
from forebay_server.parallel.messages import BlockTables
from forebay_server.parallel.process_group import StageLink
from forebay_server.parallel.ranks import Ranks
from forebay_server.parallel.sampling import StepLostError, find_together
from forebay_server.parallel.stages import micro_batches
from forebay_server.parallel.steps import Work, blocks_of, step_message, works_of_step

MIN_MICRO_BATCH_TOKENS = {"cpu": 16, "cuda": 256}
"""A step is cut into micro-batches of at least so many tokens. Below, a stage's time is that of reading its weights."""


class ParallelRunner:
    """See `Runner`. An error while ranks compute together ends the engine, since they no longer are at the same place.

    A step from which nothing is wanted (chunks of long prompts) returns while later stages still compute it, so the
    next step overlaps with it.

    Args:
        forward: rank 0's share of the first stage.
        link: to the second stage, where there is one.
        ranks: the others.
    """

    def __init__(self, forward: ForwardPass, link: StageLink, ranks: Ranks) -> None:
        self._forward, self._link, self._ranks = forward, link, ranks
        self._tables = BlockTables()
        self._stage = forward.model.stage
        self._is_only_stage = self._stage.count == 1
        self._min_tokens = MIN_MICRO_BATCH_TOKENS[forward.device.type]

    @torch.inference_mode()
    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        """See `Runner.run`.

        Raises:
            StartupError: a rank is lost, with its exit code.
        """
        works = self._works(step)
        self._tell(works)
        found: dict[str, SampledToken] = {}
        for work in works:
            hidden = self._compute(work)
            if self._is_only_stage:
                found |= self._find(work, hidden)
        return found if self._is_only_stage else self._ranks.take_found(sum(bool(work.batch.rows) for work in works))

    def _compute(self, work: Work) -> torch.Tensor:
        """This stage's part, on its way to the next stage when the method returns."""
        try:
            hidden = self._forward.compute(work.batch)
            if not self._is_only_stage:
                self._link.send(hidden)
        except Exception as error:  # whatever it is, the ranks no longer are at the same place
            raise self._lost(error) from error
        return hidden

    def _find(self, work: Work, hidden: torch.Tensor) -> dict[str, SampledToken]:
        try:
            return find_together(self._forward, work, hidden)
        except StepLostError as error:
            raise self._lost(error) from error

    def _works(self, step: SchedulerOutput) -> list[Work]:
        requests = in_batch_order(step.requests)
        sizes = [len(request.token_ids) for request in requests]
        parts = micro_batches(sizes, self._stage.count, self._min_tokens)
        return works_of_step([requests[part] for part in parts], step.new_block_ids)

    def _tell(self, works: list[Work]) -> None:
        to_all = step_message(works, self._tables)
        to_sampler = to_all if self._is_only_stage else step_message(works, self._tables, with_requests=True)
        self._ranks.send(to_all, to_sampler)
        self._tables.remember(blocks_of(works))

    def _lost(self, error: Exception) -> StartupError:
        """What to end with: the failure of the rank that is to blame, where one can be told."""
        return self._ranks.failure(wait_seconds=2.0) or StartupError(
            ExitCode.DEVICE_LOST, "RankLost", f"a step failed on rank 0: {type(error).__name__}: {error}"
        )
