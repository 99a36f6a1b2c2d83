"""A stand-in for the engine process: speaks `messages.py` over ZeroMQ, without torch; answers a prompt with itself.

The answer to a prompt is its ordinary tokens, begun `choice_index` tokens later, then the end token; with `ignore_eos`
they go round. Settings come from the environment: FAKE_STEP_SECONDS, FAKE_LOAD_SECONDS, FAKE_FAILURE (an
`EngineFailed` as JSON).
"""

import os
import sys
import time
from dataclasses import dataclass, field

import msgspec
import zmq

from forebay_server.launch import EngineLaunch, die_with_parent
from forebay_server.messages import (
    AbortRequests,
    AddRequest,
    EngineFailed,
    EngineReady,
    FinishReason,
    RequestOutput,
    Shutdown,
    StepOutputs,
    ToApi,
    ToEngine,
    TokenLogprobs,
)
from forebay_server.ops.shared_state import Phase, SharedState
from tests.fakes.tiny_model import END_TOKEN_ID, ERROR_TOKEN_ID, FIRST_SPECIAL_ID, VOCAB_SIZE

NUM_BLOCKS = 64


@dataclass
class _Running:
    request: AddRequest
    answer: list[int] = field(init=False)
    num_generated: int = 0

    def __post_init__(self) -> None:
        ordinary = [token for token in self.request.prompt_token_ids if token < FIRST_SPECIAL_ID] or [0]
        shift = self.request.choice_index % len(ordinary)
        self.answer = ordinary[shift:] + ordinary[:shift]

    def next_output(self) -> RequestOutput:
        sampling = self.request.sampling
        if self.request.pooling is not None and ERROR_TOKEN_ID not in self.request.prompt_token_ids:
            return _pooled(self.request)
        if ERROR_TOKEN_ID in self.request.prompt_token_ids:
            return RequestOutput(
                request_id=self.request.request_id, token_ids=[], finish_reason="error", error="asked to fail"
            )
        at_end = self.num_generated >= len(self.answer) and not sampling.ignore_eos
        token = END_TOKEN_ID if at_end else self.answer[self.num_generated % len(self.answer)]
        self.num_generated += 1
        finish_reason: FinishReason | None = None
        is_stop = token in sampling.stop_token_ids or (token in sampling.eos_token_ids and not sampling.ignore_eos)
        if is_stop:
            finish_reason = "stop"
        elif self.num_generated >= sampling.max_tokens:
            finish_reason = "length"
        logprobs = None
        if sampling.logprobs is not None:
            top = list(range(sampling.logprobs))
            logprobs = [TokenLogprobs(-0.5, top, [float("-inf")] * len(top))]
        return RequestOutput(
            request_id=self.request.request_id,
            token_ids=[token],
            finish_reason=finish_reason,
            stop_token_id=token if is_stop else None,
            queue_seconds=0.001 if self.num_generated == 1 else None,
            logprobs=logprobs,
        )


def _pooled(request: AddRequest) -> RequestOutput:
    """The vector [number of tokens, last token, 3 or 4 by the kind of pooling]."""
    ids = request.prompt_token_ids
    vector = [float(len(ids)), float(ids[-1]), 3.0 if request.pooling == "last" else 4.0]
    return RequestOutput(request_id=request.request_id, finish_reason="stop", queue_seconds=0.001, embedding=vector)


class FakeEngine:
    """The loop of the fake."""

    def __init__(self, launch: EngineLaunch) -> None:
        self._context = context = zmq.Context()
        self._inbox = context.socket(zmq.PULL)
        self._inbox.connect(launch.request_address)
        self._outbox = context.socket(zmq.PUSH)
        self._outbox.set(zmq.LINGER, 10_000)  # the API process may still be starting
        self._outbox.connect(launch.output_address)
        self._state = SharedState(launch.state_fd)
        self._config = launch.config
        self._requests: dict[str, _Running] = {}
        self._step_seconds = float(os.environ.get("FAKE_STEP_SECONDS", "0.001"))
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def run(self) -> int:
        failure = self._load()
        if failure is not None:
            self._send(failure)
            self._outbox.close()
            self._inbox.close()
            self._context.term()
            return failure.exit_code
        max_model_len = self._config.max_model_len or 512
        self._state.set_phase(Phase.SERVING)
        self._send(
            EngineReady(
                max_model_len=max_model_len,
                vocab_size=VOCAB_SIZE,
                block_size=16,
                num_blocks=NUM_BLOCKS,
                kv_cache_tokens=NUM_BLOCKS * 16,
                kv_bytes_per_token=8,
                weight_bytes=1000,
                dtype="float32",
                device="cpu",
            )
        )
        while True:
            while self._inbox.poll(0 if self._requests else 100):
                message = self._decoder.decode(self._inbox.recv())
                if isinstance(message, Shutdown):
                    return 0
                self._handle(message)
            if self._requests:
                time.sleep(self._step_seconds)
                self._step()

    def _load(self) -> EngineFailed | None:
        self._state.set_phase(Phase.LOADING)
        seconds = float(os.environ.get("FAKE_LOAD_SECONDS", "0"))
        self._state.set_progress(500, 1000)
        time.sleep(seconds)
        failure = os.environ.get("FAKE_FAILURE")
        if failure is not None:
            return msgspec.json.decode(failure, type=EngineFailed)
        self._state.set_progress(1000, 1000)
        return None

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, AddRequest):
            self._requests[message.request_id] = _Running(message)
        elif isinstance(message, AbortRequests):
            for request_id in message.request_ids:
                self._requests.pop(request_id, None)
            self._record()

    def _step(self) -> None:
        running = list(self._requests.values())[: self._config.max_num_seqs]
        outputs = [one.next_output() for one in running]
        for output in outputs:
            if output.finish_reason is not None:
                del self._requests[output.request_id]
        self._record()
        self._send(StepOutputs(outputs))

    def _record(self) -> None:
        num_running = min(len(self._requests), self._config.max_num_seqs)
        self._state.record_step(
            num_running=num_running,
            num_waiting=len(self._requests) - num_running,
            kv_used_blocks=num_running,
            kv_total_blocks=NUM_BLOCKS,
        )

    def _send(self, message: ToApi) -> None:
        self._outbox.send(msgspec.msgpack.encode(message))


if __name__ == "__main__":
    launched = msgspec.json.decode(sys.argv[-1], type=EngineLaunch)
    die_with_parent(launched.parent_pid)
    sys.exit(FakeEngine(launched).run())
