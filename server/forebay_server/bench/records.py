"""What one request of a load showed: when it was sent, when its tokens came, how it ended. Plain data."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestRecord:
    """One request. Times in seconds since the load began."""

    index: int
    scheduled: float
    """When the arrival process wanted it sent."""
    sent: float = 0.0
    chunk_times: list[float] = field(default_factory=list)
    """When chunks with tokens came; the first is the first token."""
    chunk_tokens: list[int] = field(default_factory=list)
    """Tokens in each."""
    ended: float = 0.0
    prompt_tokens: int = 0
    """As the server counts; else what was asked for."""
    output_tokens: int = 0
    """As the server counts; else the tokens of the chunks."""
    error: str | None = None
    """Its kind, such as `http 429`, `timeout`, `connection`; None: it was answered whole."""
    error_detail: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether it was answered whole, with at least one token."""
        return self.error is None

    @property
    def ttft(self) -> float:
        """Time to first token, from when it was sent."""
        return self.chunk_times[0] - self.sent

    @property
    def latency(self) -> float:
        """From when it was sent to the end of the answer."""
        return self.ended - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None with a single one."""
        if self.output_tokens < 2:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Times between chunks that brought tokens: what a reader waits for."""
        return [after - before for before, after in zip(self.chunk_times, self.chunk_times[1:], strict=False)]
