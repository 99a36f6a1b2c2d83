"""Engine: schedule, run, commit; and how one is built from its configuration."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from forebay_server.config import EngineConfig
from forebay_server.engine.block_pool import BlockPool
from forebay_server.engine.device import (
    available_bytes,
    bad_configuration,
    quantization_options,
    resolve_device,
    resolve_dtype,
    resolve_kv_dtype,
)
from forebay_server.engine.gpu.failures import (
    check_compiler,
    device_failure,
    failed_before_serving,
    step_error,
    while_allocating,
)
from forebay_server.engine.gpu.largest_step import largest_step_bytes
from forebay_server.engine.gpu.memory import UsedMemory, wait_for_memory
from forebay_server.engine.gpu.runner import GpuRunner
from forebay_server.engine.grammar_compiler import GrammarCompiler
from forebay_server.engine.grammars import Grammars
from forebay_server.engine.kv_cache import KVCacheLayout, allocate_kv_cache, plan_kv_cache
from forebay_server.engine.limits import SchedulerLimits
from forebay_server.engine.model_runner import OverlappingRunner, Runner, WaitForTokens
from forebay_server.engine.plan_check import room, with_plan
from forebay_server.engine.runners import build_runner, computed_by, is_compiled
from forebay_server.engine.scheduler import Scheduler
from forebay_server.engine.scheduler_output import SampledToken, SchedulerOutput
from forebay_server.errors import StartupError
from forebay_server.messages import AddRequest, ComputedBy, EngineReady, RequestOutput
from forebay_server.models.decoder import CausalLM
from forebay_server.models.model_config import ModelConfig
from forebay_server.parallel.start import RankZero, start_ranks
from forebay_server.planned_memory import PlannedMemory
from forebay_server.sampling_params import SamplingParams
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import Conversion, ProgressCallback, load_model, weight_bytes

logger = logging.getLogger(__name__)

WARM_UP_TOKENS = 32

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a loaded engine is."""

    model_config: ModelConfig
    max_model_len: int
    layout: KVCacheLayout
    weight_bytes: int
    """Of the fullest rank."""
    dtype: torch.dtype
    device: torch.device
    free_bytes: int
    """Of the device before anything was loaded."""
    conversions: tuple[Conversion, ...] = ()
    """What became of quantized weights, and of weights that were quantized, with the error."""
    computed_by: ComputedBy = "torch"

    def ready_message(self, activation_peak_bytes: int | None = None) -> EngineReady:
        """The facts as the API process wants them, with the peak of the largest step where it was measured."""
        return EngineReady(
            max_model_len=self.max_model_len,
            vocab_size=self.model_config.vocab_size,
            block_size=self.layout.block_size,
            num_blocks=self.layout.num_blocks,
            kv_cache_tokens=self.layout.num_tokens,
            kv_bytes_per_token=self.layout.bytes_per_token,
            weight_bytes=self.weight_bytes,
            activation_peak_bytes=activation_peak_bytes,
            free_bytes=self.free_bytes,
            dtype=str(self.dtype).removeprefix("torch."),
            device=str(self.device),
            computed_by=self.computed_by,
        )


@dataclass(frozen=True, slots=True)
class _LaunchedStep:
    """A step that was started and not committed."""

    step: SchedulerOutput
    wait: WaitForTokens
    is_running: bool
    """Whether the device is still at it, perhaps."""


class Engine:
    """Serves requests step by step; one thread uses it.

    Args:
        scheduler: with its block pool.
        runner: whose KV cache the block pool describes.
        grammars: of requests whose text is constrained; None: there are none.
        ranks: of a divided model.
        overlaps: whether an overlapping runner is given each step before the one before it is done.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        grammars: Grammars | None = None,
        ranks: RankZero | None = None,
        *,
        overlaps: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self._ranks = ranks or RankZero()
        self._runner = runner
        self._overlapping = runner if isinstance(runner, OverlappingRunner) else None
        self.overlaps = overlaps
        """May be changed between two steps."""
        self._grammars = grammars
        self._launched: _LaunchedStep | None = None
        """Ahead of the step that is committed next."""

    def add(self, request: AddRequest) -> None:
        """Queue a request (see `Scheduler.add`); one with a grammar is held until that is compiled."""
        if request.grammar is None:
            self.scheduler.add(request)
        elif self._grammars is None:
            raise ValueError("this engine knows no grammars")
        else:
            self.scheduler.add(request, held=True)
            self._grammars.compile(request.request_id, request.grammar)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests (see `Scheduler.abort`)."""
        self.scheduler.abort(request_ids)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return self.scheduler.has_work or self._launched is not None

    def prepare_graphs(self) -> None:
        """Capture the largest decode step where graphs are used, so that what it takes of memory is known."""
        if isinstance(self._runner, GpuRunner):
            self._runner.prepare_graphs(self.scheduler.limits.max_num_seqs)

    def check(self) -> None:
        """Look whether all ranks live; to be called at least every second, also without work.

        Raises:
            StartupError: with the exit code of the rank that ended.
        """
        self._ranks.check()

    def close(self) -> None:
        """End the other ranks; the engine computes nothing afterwards."""
        self._ranks.close()

    def step(self) -> list[RequestOutput]:
        """Compute one step and return its news; where steps overlap, start the next one before waiting for this one.

        An exception inside the step ends the requests of that step with an error; the others go on.

        Raises:
            StartupError: 15 when the device is lost, after which no step can succeed.
        """
        if self._grammars is not None:
            for request_id, failure in self._grammars.take_compiled().items():
                if failure is None:
                    self.scheduler.unhold(request_id)
                else:
                    self.scheduler.fail(request_id, failure)
        launched = self._launched or self._launch(self.scheduler.schedule())
        self._launched = None
        if launched.is_running and self.scheduler.can_run_ahead:
            self._launched = self._launch(self.scheduler.schedule(ahead=True))
        outputs = self.scheduler.commit(launched.step.step_id, _safely(launched.step, launched.wait))
        if self._launched is not None and not self._launched.step.requests:  # there was nothing to run ahead with
            outputs += self.scheduler.commit(self._launched.step.step_id, {})
            self._launched = None
        if self._grammars is not None:
            for output in outputs:
                if output.finish_reason is not None:
                    self._grammars.drop(output.request_id)
        return outputs

    def _launch(self, step: SchedulerOutput) -> _LaunchedStep:
        """Start a step: on a device that computes it meanwhile, or else compute it here and now."""
        found = _safely(step, lambda: self._start(step)) if step.requests else {}
        if isinstance(found, dict):
            return _LaunchedStep(step, lambda: found, is_running=False)
        return _LaunchedStep(step, found, is_running=True)

    def _start(self, step: SchedulerOutput) -> WaitForTokens | dict[str, SampledToken]:
        if self._grammars is not None:
            self._grammars.mask(step.requests)
        if self._overlapping is not None and self.overlaps:
            wait = self._overlapping.launch(step)
            if wait is not None:
                return wait
        sampled = self._runner.run(step)
        return sampled if self._grammars is None else self._grammars.advance(sampled)


def _safely(step: SchedulerOutput, work: Callable[[], Found]) -> Found | dict[str, SampledToken]:
    """Do a part of a step; if it fails, there is an error for each of its requests instead.

    Raises:
        StartupError: the device or a rank is lost, and no step can succeed any more.
    """
    try:
        return work()
    except StartupError:
        raise
    except Exception as error:  # whatever it is, only this step's requests shall suffer, unless the device is lost
        lost = device_failure(error)
        if lost is not None:
            raise lost from error
        logger.exception("step %d failed; its %d requests end", step.step_id, len(step.requests))
        failed = SampledToken(error=step_error(error))
        return {request.request_id: failed for request in step.requests}


def load_engine(
    config: EngineConfig,
    progress: ProgressCallback = lambda *_: None,
    *,
    planned: PlannedMemory | None = None,
    debug: bool = False,
    overlaps: bool = True,
) -> tuple[Engine, EngineFacts]:
    """Check everything, load the weights, allocate the cache.

    Args:
        config: of the engine.
        progress: called with (bytes done, bytes in total) while weights are read.
        planned: bounds the memory that may be used; None: all that is free.
        debug: let the scheduler check its books after every change.
        overlaps: see `Engine`.

    Raises:
        StartupError: with the exit code and the reason, before memory is allocated where possible.
    """
    _check_supported(config)
    device = resolve_device(config.device)
    check_compiler(device)
    checkpoint = open_checkpoint(Path(config.model))
    dtype = resolve_dtype(config, checkpoint.config)
    kv_dtype = resolve_kv_dtype(config, dtype)
    max_model_len = _max_model_len(config, checkpoint.config)
    compiled = is_compiled(checkpoint.config, device, config.num_ranks)
    options = quantization_options(config, device, is_compiled=compiled)
    num_sharing = config.num_ranks if device.type == "cpu" else 1
    wait_for_memory(device, None if planned is None else planned.total)
    free_bytes = available_bytes(device, num_sharing)
    for_weights = room(planned, free_bytes)
    ranks = start_ranks(
        config, checkpoint.config, device, options, max_model_len=max_model_len, available_bytes=for_weights
    )
    try:
        group, stage = ranks.connections.group, ranks.connections.stage
        with while_allocating("weights"):
            loaded = load_model(checkpoint, dtype, device, for_weights, progress, options, group, stage)
        model = loaded.model
        loaded_bytes = weight_bytes(model)
        free_beside = room(planned, available_bytes(device, num_sharing), loaded_bytes)
        layout = _plan_kv_cache(config, model, max_model_len, kv_dtype, device, free_beside)
        layout, loaded_bytes = ranks.join(layout, loaded_bytes, device)
    except StartupError as error:
        ranks.close()
        raise with_plan(error, planned) from error
    with while_allocating("KV cache"):
        kv_cache = allocate_kv_cache(layout, model.cache_config, device)
    limits = SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        vocab_size=checkpoint.config.vocab_size,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
    )
    scheduler = Scheduler(limits, BlockPool(layout.num_blocks, layout.block_size), debug=debug)
    vocab_size = checkpoint.config.vocab_size
    grammars = Grammars(GrammarCompiler(config.model, vocab_size), vocab_size)
    runner = build_runner(model, kv_cache, max_model_len, config.max_num_batched_tokens, ranks)
    engine = Engine(scheduler, runner, grammars, ranks, overlaps=overlaps)
    facts = EngineFacts(
        checkpoint.config,
        max_model_len,
        layout,
        loaded_bytes,
        dtype,
        device,
        free_bytes,
        tuple(loaded.conversions),
        computed_by(runner, device),
    )
    return engine, facts


def _plan_kv_cache(
    config: EngineConfig,
    model: CausalLM,
    max_model_len: int,
    kv_dtype: torch.dtype,
    device: torch.device,
    free_bytes: int,
) -> KVCacheLayout:
    """See `plan_kv_cache`; on a GPU a cache of no given size is what the largest step leaves, which is measured."""
    is_gpu, step_bytes = device.type == "cuda", None
    if is_gpu and config.kv_cache_tokens is None and config.num_ranks == 1:  # ranks would have to measure together
        with while_allocating("KV cache"):
            used = UsedMemory(device)
            step_bytes = largest_step_bytes(model, config, max_model_len, kv_dtype, used)
            used.give_back()
        logger.info("the largest step takes %d bytes, %d are free for it and the KV cache", step_bytes, free_bytes)
    sizes = (config, model.cache_config, max_model_len, kv_dtype, free_bytes)
    return plan_kv_cache(*sizes, is_gpu=is_gpu, step_bytes=step_bytes)


def warm_up(engine: Engine, facts: EngineFacts) -> None:
    """Generate once, so that the first user waits for nothing and a model that computes nonsense is found now.

    Raises:
        StartupError: 16 when the model computes no finite numbers, 14 when memory runs out, 15 or 2 when it cannot
            compute at all.
    """
    num_tokens = max(1, min(WARM_UP_TOKENS, facts.max_model_len - 1, facts.layout.num_tokens - 1))
    prompt = [index % facts.model_config.vocab_size for index in range(num_tokens)]
    sampling = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    engine.add(AddRequest(request_id="warm-up", prompt_token_ids=prompt, sampling=sampling))
    error = None
    while engine.has_work:
        for output in engine.step():
            error = output.error or error
    engine.scheduler.reset_prefix_cache()
    engine.scheduler.take_counters()
    if error is not None:
        raise failed_before_serving("the warm-up generation failed", error)


def _check_supported(config: EngineConfig) -> None:
    """Refuse flags that this version cannot honour, rather than ignore them."""
    for flag, value in (
        ("--tensor-parallel-size", config.tensor_parallel_size),
        ("--pipeline-parallel-size", config.pipeline_parallel_size),
        ("--max-num-seqs", config.max_num_seqs),
        ("--max-num-batched-tokens", config.max_num_batched_tokens),
        ("--block-size", config.block_size),
        ("--kv-cache-tokens", 1 if config.kv_cache_tokens is None else config.kv_cache_tokens),
    ):
        if value < 1:
            raise bad_configuration(f"{flag} is {value}; it must be at least 1", f"leave {flag} out")
    if config.block_size & (config.block_size - 1):
        raise bad_configuration(f"--block-size {config.block_size} is no power of two", "use 16")


def _max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    longest = model_config.max_position
    if config.max_model_len is None:
        return longest
    if not 2 <= config.max_model_len <= longest:
        raise bad_configuration(
            f"--max-model-len is {config.max_model_len}; this model can do 2 to {longest}",
            f"use --max-model-len {longest}",
        )
    return config.max_model_len
