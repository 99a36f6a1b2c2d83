"""Numbers that the processes of one server share through memory: who writes is never blocked, who reads never waits.

One memory file (`memfd`), inherited by the children as a file descriptor, so that nothing is left behind however a
process ends. Every number is one aligned 8-byte float64 and has one writing process; a reader may see two numbers of
different moments, which the probes do not mind. All times are CLOCK_MONOTONIC seconds, the same clock in every process.

Written by the engine process: `set_phase`, `set_progress`, `record_step`. Written by the ops process:
`ask_for_cache_reset`. Written by the API process: the rest.
"""

import mmap
import os
import time
from dataclasses import dataclass
from enum import IntEnum

NUM_HISTOGRAM_SLOTS = 1024
"""Room behind the named numbers for the histograms of `forebay_server.metrics`."""


class Phase(IntEnum):
    """Where the engine is; the lower-case name is what `/startupz` says."""

    DOWNLOADING = 0
    LOADING = 1
    COMPILING = 2
    WARMING = 3
    SERVING = 4


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """All named numbers at (about) one moment; the order of the fields is the layout of the memory."""

    # written by the engine process
    phase: float = 0
    phase_since: float = 0
    """When the phase began."""
    bytes_done: float = 0
    bytes_total: float = 0
    last_progress: float = 0
    """When a phase began or bytes arrived."""
    step_count: float = 0
    last_step: float = 0
    """When the last step ended."""
    num_running: float = 0
    num_waiting: float = 0
    kv_used_blocks: float = 0
    kv_total_blocks: float = 0
    kv_unused_slots: float = 0
    """Slots of used blocks that hold no token: what paging wastes."""
    num_preemptions: float = 0
    prefix_cache_queries: float = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: float = 0
    """Prompt tokens found there."""
    # written by the API process
    api_heartbeat: float = 0
    """When the API's event loop last ran."""
    api_started: float = 0
    engine_pid: float = 0
    step_cpu_wait: float = 0
    """Seconds that the engine waited for a CPU while the present step ran; 0 while it has not taken long."""
    is_ready: float = 0
    """1 from EngineReady until the engine is gone."""
    is_draining: float = 0
    num_engine_restarts: float = 0
    """Engines started because the one before ended or hung."""
    num_in_flight: float = 0
    """Choices admitted and not finished, tokenizing included."""
    num_in_engine: float = 0
    """Choices handed to the engine and not finished."""
    num_prompt_tokens: float = 0
    """Prompt tokens of requests that were served, cached ones included: as `usage` tells their clients."""
    num_generation_tokens: float = 0
    """Generated tokens, as `usage` tells."""
    num_admission_rejections: float = 0
    """Requests that got 429."""
    in_engine_since: float = 0
    """When `num_in_engine` last rose from 0."""
    weight_bytes: float = 0
    """Measured by the engine, as are the next ones (EngineReady)."""
    kv_cache_tokens: float = 0
    kv_bytes_per_token: float = 0
    max_model_len: float = 0
    block_size: float = 0
    num_blocks: float = 0
    activation_peak_bytes: float = 0
    """Of the largest step; 0: not measured."""
    free_bytes: float = 0
    """Of the device before anything was loaded."""
    computed_by: float = 0
    """What computes steps: 1 and more count through `ComputedBy`; 0: not known yet."""
    planned_total_bytes: float = 0
    """The operator's plan, as are the next ones; 0: there is none."""
    planned_weight_bytes: float = 0
    planned_kv_cache_bytes: float = 0
    planned_activation_bytes: float = 0
    # written by the ops process
    cache_reset_asked: float = 0
    """When somebody last asked that the prefix cache be forgotten."""


_INDEX_BY_FIELD = {name: index for index, name in enumerate(StateSnapshot.__dataclass_fields__)}
_NUM_NAMED = len(_INDEX_BY_FIELD)
_SIZE_BYTES = 8 * (_NUM_NAMED + NUM_HISTOGRAM_SLOTS)


class SharedState:
    """The numbers, mapped into this process.

    Args:
        file_descriptor: of the memory file; made by `create` in the first process, inherited by the others
            (`subprocess.Popen(pass_fds=[state.file_descriptor])`).
    """

    def __init__(self, file_descriptor: int) -> None:
        self.file_descriptor = file_descriptor
        numbers = memoryview(mmap.mmap(file_descriptor, _SIZE_BYTES)).cast("d")
        self._named = numbers[:_NUM_NAMED]
        self.histogram_slots = numbers[_NUM_NAMED:]
        """Raw float64 numbers whose meaning `forebay_server.metrics` defines; written by the API process."""

    @classmethod
    def create(cls) -> "SharedState":
        """Make the memory: every number 0, the phase LOADING since now."""
        file_descriptor = os.memfd_create("forebay-state")
        os.ftruncate(file_descriptor, _SIZE_BYTES)
        state = cls(file_descriptor)
        state.set_phase(Phase.LOADING)
        state.put("api_started", time.monotonic())
        return state

    def snapshot(self) -> StateSnapshot:
        """Read every named number."""
        return StateSnapshot(*self._named)

    def get(self, field: str) -> float:
        """Read one number by its name in `StateSnapshot`."""
        return self._named[_INDEX_BY_FIELD[field]]

    def put(self, field: str, value: float) -> None:
        """Write one number by its name in `StateSnapshot`."""
        self._named[_INDEX_BY_FIELD[field]] = value

    def add(self, field: str, amount: float) -> None:
        """Add to one number; only the process that owns the number may."""
        self._named[_INDEX_BY_FIELD[field]] += amount

    def set_phase(self, phase: Phase) -> None:
        """Begin a phase; counts as progress."""
        now = time.monotonic()
        self.put("last_progress", now)
        self.put("phase_since", now)
        self.put("phase", phase)

    def set_progress(self, bytes_done: int, bytes_total: int) -> None:
        """Say how much of the weights has arrived; a startup whose bytes stop moving is killed, so call it often.

        Calling it with the same `bytes_done` is no progress.
        """
        if bytes_done != self.get("bytes_done"):
            self.put("last_progress", time.monotonic())
        self.put("bytes_total", bytes_total)
        self.put("bytes_done", bytes_done)

    def ask_for_cache_reset(self) -> None:
        """Have the engine forget its prefix cache before the next request that it takes."""
        self.put("cache_reset_asked", time.monotonic())

    def record_step(
        self,
        *,
        num_running: int,
        num_waiting: int,
        kv_used_blocks: int,
        kv_total_blocks: int,
        kv_unused_slots: int = 0,
        new_preemptions: int = 0,
        new_prefix_cache_queries: int = 0,
        new_prefix_cache_hits: int = 0,
    ) -> None:
        """Say that a step ended (or that an abort changed the queues). About 2 microseconds.

        Args:
            num_running: requests that have computed tokens in the KV cache, after the step.
            num_waiting: requests in the engine's queue that have none yet.
            kv_used_blocks: blocks that running requests hold; blocks only kept for prefix hits count as free.
            kv_total_blocks: blocks of the pool.
            kv_unused_slots: slots of the used blocks that hold no token.
            new_preemptions: requests that lost their blocks in this step.
            new_prefix_cache_queries: prompt tokens looked up for requests that ran for the first time.
            new_prefix_cache_hits: those found.
        """
        self.put("num_running", num_running)
        self.put("num_waiting", num_waiting)
        self.put("kv_used_blocks", kv_used_blocks)
        self.put("kv_total_blocks", kv_total_blocks)
        self.put("kv_unused_slots", kv_unused_slots)
        self.add("num_preemptions", new_preemptions)
        self.add("prefix_cache_queries", new_prefix_cache_queries)
        self.add("prefix_cache_hits", new_prefix_cache_hits)
        self.put("last_step", time.monotonic())
        self.add("step_count", 1)
