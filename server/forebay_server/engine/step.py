"""Step: what the scheduler knows of a step while it is made and until it is committed."""

from dataclasses import dataclass, field

from forebay_server.engine.request import Request
from forebay_server.engine.scheduler_output import ScheduledRequest


@dataclass(slots=True)
class Step:
    """One step."""

    budget: int
    """Tokens that it may still take."""
    requests: list[Request] = field(default_factory=list)
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    """What each of them computes."""
    new_block_ids: list[int] = field(default_factory=list)
    """Blocks first used in this step."""
    waits_for_blocks: bool = False
    """A request lacks blocks that one behind it holds and a step in flight uses: those behind it are given nothing."""
    unfinished: list[int] = field(default_factory=list)
    """Places in `requests` of those that may know more tokens than they were given."""

    def add(self, request: Request, num_new: int) -> None:
        """Give a request its next tokens, for which it has blocks."""
        scheduled = request.start(num_new)
        if not scheduled.is_sampled:
            self.unfinished.append(len(self.requests))
        self.requests.append(request)
        self.scheduled.append(scheduled)
        self.budget -= num_new
