"""Forebay's engine as a worker of the comparison: the engine alone, as the peers are measured.

python -m benchmarks.peers.forebay_engine
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the engine process sets it, before torch is imported

from itertools import count

from benchmarks.peers.worker import Setup, run

from forebay_server.config import EngineConfig
from forebay_server.engine.device import set_threads
from forebay_server.engine.engine import load_engine, warm_up
from forebay_server.messages import AddRequest
from forebay_server.sampling_params import SamplingParams


class ForebayEngine:
    """See `PeerEngine`. Options: any field of `EngineConfig` whose value is text."""

    def __init__(self, setup: Setup) -> None:
        threads = set_threads()
        if threads != setup.threads:
            raise SystemExit(f"the engine takes {threads} threads here, the comparison is about {setup.threads}")
        tokens_a_stream = setup.max_tokens + 32  # the last block, and the block that preemption would need
        config = EngineConfig(
            model=setup.model,
            device="cpu",
            kv_cache_tokens=setup.max_streams * tokens_a_stream,
            max_num_seqs=setup.max_streams,
            **setup.options,  # type: ignore[arg-type]  # checked by the engine
        )
        self._engine, facts = load_engine(config)
        warm_up(self._engine, facts)
        self._numbers = count()
        self.version = "this checkout"
        described = ", ".join(f"{name} {value}" for name, value in setup.options.items())
        self.details = f"{described or facts.ready_message().dtype}, weights {facts.weight_bytes / 1e6:.0f} MB"

    def generate(self, prompts: list[list[int]], output_tokens: int) -> int:
        """See `PeerEngine`."""
        sampling = SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True)
        for prompt in prompts:
            self._engine.add(
                AddRequest(request_id=f"peer-{next(self._numbers)}", prompt_token_ids=prompt, sampling=sampling)
            )
        num_tokens = 0
        while self._engine.has_work:
            for output in self._engine.step():
                if output.error is not None:
                    raise SystemExit(f"the engine failed: {output.error}")
                num_tokens += len(output.token_ids)
        return num_tokens


if __name__ == "__main__":
    run(ForebayEngine)
