"""vLLM for CPUs as a worker of the comparison; runs in vLLM's environment.

python -m benchmarks.peers.vllm_cpu
"""

import os

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{(os.cpu_count() or 1) - 1}")  # every CPU computes

import vllm
from benchmarks.peers.worker import Setup, run
from vllm import LLM, SamplingParams


class VllmEngine:
    """See `PeerEngine`. bfloat16, its defaults but for the prefix cache."""

    def __init__(self, setup: Setup) -> None:
        self._llm = LLM(
            model=setup.model,
            dtype="bfloat16",
            max_model_len=max(4096, setup.max_tokens),
            max_num_seqs=max(16, setup.max_streams),
            enable_prefix_caching=False,
        )
        self.version = vllm.__version__
        self.details = "bfloat16"

    def generate(self, prompts: list[list[int]], output_tokens: int) -> int:
        """See `PeerEngine`."""
        sampling = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        answers = self._llm.generate(requests, sampling, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)


if __name__ == "__main__":  # vLLM starts processes that import this module again
    run(VllmEngine)
