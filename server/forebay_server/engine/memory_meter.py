"""Measures what the largest step takes beside weights and KV cache: the peak around a step of made-up prompts."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from forebay_server.engine.device import available_bytes
from forebay_server.engine.engine import Engine, EngineFacts
from forebay_server.engine.gpu.failures import failed_before_serving
from forebay_server.engine.gpu.memory import UsedMemory
from forebay_server.errors import ExitCode, StartupError
from forebay_server.messages import AddRequest
from forebay_server.sampling_params import SamplingParams

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""What resets the peak of the resident size (proc(5), clear_refs)."""
_PROMPTS_PER_STEP = 4
"""A step gives one prompt at most a quarter of its tokens while others want some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasurement:
    """What the largest step took."""

    peak_bytes: int
    num_tokens: int
    """Of the step: `max_num_batched_tokens`, or fewer where the cache has no room for so many."""
    free_bytes: int
    """Of the device before the step, those of the KV cache included."""


def measure_step(engine: Engine, facts: EngineFacts) -> StepMeasurement:
    """Run one step with as many tokens as a step may have, and one that samples as many rows as it may.

    Raises:
        StartupError: 16 when the model computes no finite numbers; 14 when memory runs out; 15 or 2 when it cannot
            compute at all.
    """
    limits, layout = engine.scheduler.limits, facts.layout
    is_gpu = facts.device.type == "cuda"
    used = UsedMemory(facts.device) if is_gpu else _ResidentMemory()
    # a GPU's cache is taken already; on a CPU the kernel hands out its pages only when they are written
    free = available_bytes(facts.device) + (layout.num_bytes if is_gpu else 0)
    lengths = prompt_lengths(
        limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=facts.max_model_len,
        num_blocks=layout.num_blocks,
        block_size=layout.block_size,
    )
    _run(engine, facts, "prompts", lengths)
    _run(engine, facts, "rows", [1] * min(limits.max_num_seqs, layout.num_blocks))
    engine.prepare_graphs()
    peak = used.peak_bytes()
    if not is_gpu:
        blocks = sum(-(-length // layout.block_size) for length in lengths)
        peak -= blocks * layout.block_size * layout.bytes_per_token
    engine.scheduler.reset_prefix_cache()
    engine.scheduler.take_counters()
    return StepMeasurement(peak_bytes=max(0, peak), num_tokens=sum(lengths), free_bytes=free)


def prompt_lengths(
    num_tokens: int, *, max_num_seqs: int, max_model_len: int, num_blocks: int, block_size: int
) -> list[int]:
    """Prompts that fill a step: at most a quarter of it each, of lengths that requests may have, within the cache."""
    longest = max(1, min(-(-num_tokens // min(_PROMPTS_PER_STEP, max_num_seqs)), max_model_len - 1))
    lengths: list[int] = []
    while num_tokens > 0 and num_blocks > 1 and len(lengths) < max_num_seqs:
        length = min(longest, num_tokens, (num_blocks - 1) * block_size)  # a block is left for the answer
        lengths.append(length)
        num_tokens -= length
        num_blocks -= length // block_size + 1
    return lengths


def _run(engine: Engine, facts: EngineFacts, name: str, lengths: list[int]) -> None:
    """Serve made-up prompts to the end. They differ in their first token, so that none finds another's cache."""
    sampling = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9, ignore_eos=True, seed=0)
    vocab_size = facts.model_config.vocab_size
    for index, length in enumerate(lengths):
        tokens = [(index + position) % vocab_size for position in range(length)]
        engine.add(AddRequest(request_id=f"{name}-{index}", prompt_token_ids=tokens, sampling=sampling))
    error = None
    while engine.has_work:
        for output in engine.step():
            error = output.error or error
    if error is not None:
        raise failed_before_serving("the largest step failed", error)


class _ResidentMemory:
    """What this process takes of a host's memory from now on."""

    def __init__(self) -> None:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)  # what is free and still held would hide as much of the peak
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK)
            self._start = _resident_bytes("VmRSS")
        except OSError:
            self._start = _resident_bytes("VmHWM")  # may not be reset: only what exceeds the peak of loading is seen

    def peak_bytes(self) -> int:
        """The most so far."""
        return _resident_bytes("VmHWM") - self._start


def _resident_bytes(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise StartupError(ExitCode.BAD_CONFIGURATION, "UnsupportedSystem", f"{_STATUS} does not tell {name}")
