"""What every route works with: configuration, model, engine, admission, metrics."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TypeVar

from forebay_server.api.admission import Admission
from forebay_server.api.engine_client import EngineClient
from forebay_server.api.tracing import RequestTraces
from forebay_server.config import ServerConfig
from forebay_server.errors import NotFoundError, UnavailableError
from forebay_server.messages import EngineReady
from forebay_server.metrics import RequestMetrics
from forebay_server.ops.probes import Limits
from forebay_server.ops.reports import TokenRate
from forebay_server.ops.shared_state import SharedState
from forebay_server.text.model_text import ModelText
from forebay_server.text.reasoning import ReasoningStyle, reasoning_style
from forebay_server.text.tool_parsers.formats import HERMES, ToolFormat, tool_format

LOADING_RETRY_SECONDS = 5
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model, once the engine has it."""

    text: ModelText
    engine: EngineReady
    tool_format: ToolFormat = HERMES
    """How the model writes tool calls."""
    reasoning: ReasoningStyle | None = None
    """How it reasons before it answers; None: that is not looked for."""

    @property
    def context_tokens(self) -> int:
        """Prompt and answer together at most: the model's length, or the KV cache if that is smaller."""
        return min(self.engine.max_model_len, self.engine.kv_cache_tokens)


def served_model(text: ModelText, engine: EngineReady, config: ServerConfig) -> ServedModel:
    """The model, with the parsers that the configuration and its chat template say."""
    template = text.chat_template.source if text.chat_template else None
    form = tool_format(config.tool_call_parser, template)
    return ServedModel(text, engine, form, reasoning_style(config.reasoning_parser))


@dataclass(slots=True)
class Service:
    """One server. `model` is None while loading; everything else is there from the start."""

    config: ServerConfig
    state: SharedState
    engine: EngineClient
    admission: Admission = field(init=False)
    metrics: RequestMetrics = field(init=False)
    token_rate: TokenRate = field(init=False)
    model: ServedModel | None = None
    is_restarting: bool = False
    """Whether the engine ended and another one is being started."""
    traces: RequestTraces | None = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix seconds; the `created` of the model list."""
    _tokenizing: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "tokenize"))
    _checking: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "grammar"))
    """For requests with a grammar: to check a large one takes seconds, for which no other request waits."""

    def __post_init__(self) -> None:
        self.admission = Admission(self.config.max_queued_requests, self.config.max_queued_tokens, self.state)
        self.metrics = RequestMetrics(self.state)
        endpoint = self.config.otlp_traces_endpoint
        self.traces = None if endpoint is None else RequestTraces(endpoint, version("forebay"))
        self.token_rate = TokenRate(self.state)

    @property
    def model_name(self) -> str:
        """The name that answers carry."""
        return self.config.served_model_names[0]

    @property
    def limits(self) -> Limits:
        """How long nothing may happen."""
        return Limits(
            hang_timeout=self.config.hang_timeout_seconds,
            load_stall_timeout=self.config.load_stall_timeout_seconds,
            compile_timeout=self.config.compile_timeout_seconds,
        )

    def require_model(self, name: str | None = None) -> ServedModel:
        """The model, if it is loaded and `name` is one of its names (None: any).

        Raises:
            UnavailableError: it is still loading.
            NotFoundError: there is no model of that name.
        """
        if self.is_restarting:
            raise restarting_error()
        if self.model is None:
            raise UnavailableError(
                "the model is still loading", code="model_loading", retry_after_seconds=LOADING_RETRY_SECONDS
            )
        if name is not None and name not in self.config.served_model_names:
            raise NotFoundError(
                f"there is no model {name!r} here; there is {', '.join(self.config.served_model_names)}",
                param="model",
                code="model_not_found",
            )
        return self.model

    async def in_thread(self, work: Callable[[], _Result], *, has_grammar: bool = False) -> _Result:
        """Do text work without holding up the event loop (tokenizer and grammar compiler let go of the GIL)."""
        threads = self._checking if has_grammar else self._tokenizing
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        for threads in (self._tokenizing, self._checking):
            threads.shutdown(wait=False, cancel_futures=True)
        if self.traces is not None:
            self.traces.close()


def restarting_error() -> UnavailableError:
    """What requests are told while another engine is started."""
    return UnavailableError(
        "the engine ended and is being started again",
        code="engine_restarting",
        retry_after_seconds=LOADING_RETRY_SECONDS,
    )
