"""ModelRunner: SchedulerOutput to tensors to sampled tokens. No queues here."""

from typing import Protocol

import msgspec
import torch

from forebay_server.engine.pooling import pool
from forebay_server.engine.prompt_scores import score_prompt
from forebay_server.engine.sampler import sample
from forebay_server.engine.scheduler_output import SampledToken, ScheduledRequest, SchedulerOutput
from forebay_server.layers.attention import SequenceSlice, build_attention_metadata
from forebay_server.layers.kv_cache import KVCache
from forebay_server.layers.rotary_embedding import rotary_tables
from forebay_server.models.decoder import CausalLM


class Runner(Protocol):
    """What the engine needs of a model runner."""

    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        """Compute a step: what was found for every request that is sampled, scores or pools, or an error."""
        ...


class ModelRunner:
    """Runs one model on one device.

    Args:
        model: with its weights.
        kv_cache: all zero, of the model's size.
        max_model_len: positions that the rotary table covers.
    """

    def __init__(self, model: CausalLM, kv_cache: KVCache, max_model_len: int) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._block_size = kv_cache.block_size
        self._device = kv_cache.numbers.device
        self._rotary_tables = tuple(table.to(self._device) for table in rotary_tables(model.config, max_model_len))
        self._windows = frozenset(map(model.config.sliding_window, range(model.config.num_layers)))

    @torch.inference_mode()
    def run(self, step: SchedulerOutput) -> dict[str, SampledToken]:
        """See `Runner.run`."""
        if step.new_block_ids:
            self._kv_cache.clear(self._tensor(step.new_block_ids))
        requests = sorted(step.requests, key=_batch_order)
        sampled = [request for request in requests if request.is_sampled]
        scored = [request for request in requests if request.scored_token_ids]
        hidden = self._forward(requests)
        found: dict[str, SampledToken] = {}
        if sampled:
            tokens = sample(self._model.logits(hidden[: len(sampled)]), sampled)
            found = {request.request_id: token for request, token in zip(sampled, tokens, strict=True)}
        row = len(sampled)
        for request in scored:
            scores = score_prompt(request, hidden[row : row + len(request.scored_token_ids)], self._model.logits)
            row += len(request.scored_token_ids)
            token = found.get(request.request_id)
            if token is not None and scores.error is None:
                scores = msgspec.structs.replace(token, prompt_logprobs=scores.prompt_logprobs)
            found[request.request_id] = scores
        return found | pool(requests, hidden[row:])

    def _forward(self, requests: list[ScheduledRequest]) -> torch.Tensor:
        """[num_rows, hidden_size]: of each sampled request, then of those that score, then of those that pool."""
        token_ids: list[int] = []
        positions: list[int] = []
        sampled_rows: list[int] = []
        scored_rows: list[int] = []
        pooled_rows: list[int] = []
        slices = []
        for request in requests:
            num_new = len(request.token_ids)
            first_scored = len(token_ids) + request.first_scored_row
            scored_rows.extend(range(first_scored, first_scored + len(request.scored_token_ids)))
            token_ids.extend(request.token_ids)
            pooled_rows.extend(range(len(token_ids) - request.num_pooled_rows, len(token_ids)))
            positions.extend(range(request.context_len, request.context_len + num_new))
            slices.append(SequenceSlice(num_new, request.context_len, request.block_ids))
            if request.is_sampled:
                sampled_rows.append(len(token_ids) - 1)
        hidden: torch.Tensor = self._model(
            self._tensor(token_ids),
            self._tensor(positions),
            self._rotary_tables,
            self._kv_cache,
            build_attention_metadata(slices, self._block_size, self._device, self._windows),
            self._tensor(sampled_rows + scored_rows + pooled_rows),
        )
        return hidden

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _batch_order(request: ScheduledRequest) -> tuple[bool, int]:
    """Decodes first, by growing context: rows that attend together lie together."""
    return len(request.token_ids) > 1, request.context_len
