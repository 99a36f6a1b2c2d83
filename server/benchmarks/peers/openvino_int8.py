"""OpenVINO GenAI as a worker of the comparison; runs in OpenVINO's environment.

python -m benchmarks.peers.openvino_int8
"""

import numpy as np
import openvino as ov
import openvino_genai as genai
from benchmarks.peers.worker import Setup, run


class OpenVinoEngine:
    """See `PeerEngine`. One stream goes through its pipeline for one, several through continuous batching."""

    def __init__(self, setup: Setup) -> None:
        properties = {"INFERENCE_NUM_THREADS": setup.threads}
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2  # GB
        scheduler.max_num_seqs = max(16, setup.max_streams)
        scheduler.max_num_batched_tokens = setup.max_streams * setup.max_tokens
        scheduler.enable_prefix_caching = False
        self._one = genai.LLMPipeline(setup.model, "CPU", **properties, ATTENTION_BACKEND="SDPA")
        self._many = genai.ContinuousBatchingPipeline(setup.model, scheduler, "CPU", properties)
        self.version = genai.__version__.split("-")[0]
        self.details = "int8 weights (asymmetric, by optimum-cli)"

    def generate(self, prompts: list[list[int]], output_tokens: int) -> int:
        """See `PeerEngine`."""
        settings = genai.GenerationConfig()
        settings.max_new_tokens = output_tokens
        settings.ignore_eos = True
        settings.do_sample = False
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        if len(prompts) == 1:
            return sum(len(tokens) for tokens in self._one.generate(inputs[0], settings).tokens)
        answers = self._many.generate(inputs, [settings] * len(prompts))
        return sum(len(answer.m_generation_ids[0]) for answer in answers)


if __name__ == "__main__":
    run(OpenVinoEngine)
