"""llama.cpp as a worker of the comparison, through its C interface; runs in llama.cpp's environment.

python -m benchmarks.peers.llama_cpp_gguf
"""

from importlib.metadata import version
from typing import Any

import llama_cpp
import numpy as np
from benchmarks.peers.worker import Setup, run


class LlamaCppEngine:
    """See `PeerEngine`. A context for each number of streams, so that one stream pays nothing for the others."""

    def __init__(self, setup: Setup) -> None:
        llama_cpp.llama_backend_init()
        self._setup = setup
        self._model = llama_cpp.llama_model_load_from_file(setup.model.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {setup.model}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._contexts: dict[int, Any] = {}
        self.version = f"llama-cpp-python {version('llama-cpp-python')}"
        self.details = setup.options.get("format", "")

    def generate(self, prompts: list[list[int]], output_tokens: int) -> int:
        """See `PeerEngine`. Greedy by numpy's argmax, which costs less than its sampler chain."""
        streams = len(prompts)
        context = self._context(streams)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch = llama_cpp.llama_batch_init(sum(map(len, prompts)), 0, 1)
        try:
            rows = self._decode(context, batch, [list(enumerate(prompt)) for prompt in prompts])
            tokens = [self._best(context, row) for row in rows]
            num_tokens = streams
            for step in range(1, output_tokens):
                position = [len(prompt) + step - 1 for prompt in prompts]
                rows = self._decode(context, batch, [[(position[i], tokens[i])] for i in range(streams)])
                tokens = [self._best(context, row) for row in rows]
                num_tokens += streams
        finally:
            llama_cpp.llama_batch_free(batch)
        return num_tokens

    def _decode(self, context: Any, batch: Any, new: list[list[tuple[int, int]]]) -> list[int]:
        """Compute (position, token) pairs of each stream; returns the row of each stream's last."""
        row, last_rows = 0, []
        for stream, pairs in enumerate(new):
            for position, token in pairs:
                batch.token[row], batch.pos[row] = token, position
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, stream
                batch.logits[row] = False
                row += 1
            batch.logits[row - 1] = True
            last_rows.append(row - 1)
        batch.n_tokens = row
        status = llama_cpp.llama_decode(context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode: status {status}")
        return last_rows

    def _best(self, context: Any, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())

    def _context(self, streams: int) -> Any:
        if streams not in self._contexts:
            tokens = -(-self._setup.max_tokens // 256) * 256 * streams
            settings = llama_cpp.llama_context_default_params()
            settings.n_ctx = tokens
            settings.n_batch = tokens
            settings.n_seq_max = streams
            settings.n_threads = settings.n_threads_batch = self._setup.threads
            settings.no_perf = True
            self._contexts[streams] = llama_cpp.llama_init_from_model(self._model, settings)
            if not self._contexts[streams]:
                raise SystemExit(f"llama.cpp cannot make a context for {streams} streams")
        return self._contexts[streams]


if __name__ == "__main__":
    run(LlamaCppEngine)
