"""The C++ step against the same model in torch operators, and what it promises: a row depends on its own past alone."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from forebay_kernels.cpu.llama_step import LlamaLayerWeights, LlamaSizes, LlamaStep, LlamaWeights, StepBatch
from forebay_kernels.cpu.packing import AnyWeight, pack
from forebay_kernels.int4_weights import Int4Weight, pack_int4
from forebay_kernels.int8_weights import Int8Weight, quantize_int8
from forebay_kernels.reference.attention import attend
from forebay_kernels.reference.cpu import quantized_linear
from forebay_kernels.reference.norms import rms_norm
from forebay_kernels.reference.positions import rotary
from forebay_kernels.reference.quantization import quantize_rows
from tests.test_kernels.cpu_library import variants

VARIANTS = variants()
BEST = VARIANTS[0]
NUM_BLOCKS, MAX_TOKENS, POSITIONS = 96, 200, 2700


@dataclass(frozen=True)
class Shape:
    """A model to try."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    hidden: int = 128
    intermediate: int = 192
    vocab: int = 131
    kind: str = "int8"
    cache: torch.dtype = torch.float32
    block_size: int = 16
    has_bias: bool = False
    has_head_norms: bool = False
    head_group: int | None = None
    head_kind: str = "int8"
    table_kind: str | None = None
    """Of an embedding of its own; None: the rows of the head."""
    window: int | None = None
    """Of the second layer."""
    rotary_dim: int | None = None
    """None: whole heads turn."""


SHAPES = (
    Shape(),
    Shape(heads=9, kv_heads=3, hidden=576, intermediate=1536),
    Shape(heads=6, kv_heads=1, head_dim=80, hidden=144, intermediate=100, has_bias=True),
    Shape(heads=2, kv_heads=2, head_dim=256, has_head_norms=True, table_kind="bf16"),
    Shape(heads=8, kv_heads=1, head_dim=96, block_size=4),
    Shape(kind="int4", head_group=32, cache=torch.bfloat16),
    Shape(kind="groups", table_kind="groups", block_size=32),
    Shape(kind="bf16", head_kind="bf16"),
    Shape(kind="int4", head_kind="int4"),
    Shape(kind="int4", head_kind="int4 around 8"),
    Shape(kind="int4", table_kind="int4"),
    Shape(cache=torch.bfloat16),
    Shape(cache=torch.int8, head_dim=128),
    Shape(cache=torch.bfloat16, window=20),
    Shape(cache=torch.bfloat16, window=64, kv_heads=1, head_dim=32, block_size=32),
    Shape(window=1),
    Shape(head_dim=64, rotary_dim=48, has_head_norms=True),
)


class Model:
    """Random weights of a shape, as the C++ step and as torch operators."""

    def __init__(self, shape: Shape, variant: str = BEST, num_threads: int = 2) -> None:
        self.shape = shape
        self.windows = (None, shape.window)
        self.rotary_dim = shape.rotary_dim or shape.head_dim
        self._generator = torch.Generator().manual_seed(3)
        qkv_size = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        sizes = (
            (qkv_size, shape.hidden),
            (shape.hidden, shape.heads * shape.head_dim),
            (2 * shape.intermediate, shape.hidden),
            (shape.hidden, shape.intermediate),
        )
        self.matrices = [[self._weight(*size, shape.kind) for size in sizes] for _ in range(2)]
        self.biases = [[self._bias(rows) for rows, _ in sizes] for _ in range(2)]
        self.norms = [[1 + 0.1 * self._random(shape.hidden) for _ in range(2)] for _ in range(2)]
        self.head_norms = [1 + 0.1 * self._random(shape.head_dim) for _ in range(2)] if shape.has_head_norms else None
        table_size = (shape.vocab, shape.hidden)
        self.head = self._weight(*table_size, shape.head_kind)
        if shape.head_kind == "int8":
            head = quantize_int8(self._random(*table_size), shape.head_group)
            # scales of groups are those that float16 can hold, as it does in the packed head
            self.head = Int8Weight(head.values, head.scales.half().float()) if shape.head_group else head
        table = None if shape.table_kind is None else self._weight(*table_size, shape.table_kind)
        looked_up = self.head if table is None else table
        self.table = looked_up.float() if isinstance(looked_up, torch.Tensor) else looked_up.dequantize()
        angles = torch.outer(torch.arange(float(POSITIONS)), 0.5 ** torch.arange(self.rotary_dim // 2))
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
        self.step = self._make_step(table, variant, num_threads)

    def _make_step(self, table: AnyWeight | None, variant: str, num_threads: int) -> LlamaStep:
        shape = self.shape
        query_norm, key_norm = self.head_norms or (None, None)
        layers = []
        for matrices, biases, norms, window in zip(self.matrices, self.biases, self.norms, self.windows, strict=True):
            packed = [
                pack(matrix, bias, num_parts=2 if index == 2 else 1)
                for index, (matrix, bias) in enumerate(zip(matrices, biases, strict=True))
            ]
            qkv, output, gate_up, down = packed
            layers.append(
                LlamaLayerWeights(
                    input_norm=norms[0],
                    attention_norm=norms[1],
                    qkv=qkv,
                    output=output,
                    gate_up=gate_up,
                    down=down,
                    query_norm=query_norm,
                    key_norm=key_norm,
                    window=window,
                )
            )
        cache_shape = (2, 2, NUM_BLOCKS, shape.block_size, shape.kv_heads, shape.head_dim)
        # What was never written must not matter.
        self.cache = torch.full(cache_shape, 77 if shape.cache == torch.int8 else torch.nan, dtype=shape.cache)
        return LlamaStep(
            LlamaSizes(
                hidden_size=shape.hidden,
                intermediate_size=shape.intermediate,
                num_heads=shape.heads,
                num_kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                vocab_size=shape.vocab,
                rms_norm_eps=1e-5,
            ),
            LlamaWeights(layers, torch.ones(shape.hidden), pack(self.head), None if table is None else pack(table)),
            self.cache,
            self.cos_sin,
            max_tokens=MAX_TOKENS,
            num_threads=num_threads,
            variant=variant,
            kv_scales=torch.full(cache_shape[:-1], torch.nan) if shape.cache == torch.int8 else None,
        )

    def _random(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, generator=self._generator)

    def _bias(self, rows: int) -> torch.Tensor | None:
        return self._random(rows) if self.shape.has_bias else None

    def _weight(self, rows: int, columns: int, kind: str) -> AnyWeight:
        weight: torch.Tensor = self._random(rows, columns) / columns**0.5
        if kind == "bf16":
            return weight.bfloat16()
        if kind in ("int4", "int4 around 8"):
            numbers = torch.randint(0, 16, (rows, columns), generator=self._generator, dtype=torch.uint8)
            scales = torch.full((rows, columns // 32), 0.25 / columns**0.5).half()
            return Int4Weight(pack_int4(numbers, 32), scales, None, None, scales * -7.5 if kind == "int4" else None)
        if kind == "int8":
            return quantize_int8(weight)
        groups = quantize_int8(weight, 32)
        return Int8Weight(groups.values, groups.scales.half().float())

    def expected(self, token_ids: list[int]) -> torch.Tensor:
        """[len(token_ids), vocab]: the logits of one sequence, in torch operators."""
        shape = self.shape
        residual = self.table[token_ids]
        positions = torch.arange(len(token_ids))
        query_size, key_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        for matrices, biases, norms, window in zip(self.matrices, self.biases, self.norms, self.windows, strict=True):
            qkv = linear(rms_norm(residual, norms[0], 1e-5), matrices[0], biases[0])
            query, key, value = (
                part.reshape(len(token_ids), -1, shape.head_dim)
                for part in torch.split(qkv, [query_size, key_size, key_size], dim=1)
            )
            if self.head_norms is not None:
                query, key = (
                    rms_norm(x.flatten(0, 1), norm, 1e-5).view_as(x)
                    for x, norm in zip((query, key), self.head_norms, strict=True)
                )
            turned = rotary(query[..., : self.rotary_dim], key[..., : self.rotary_dim], positions, self.cos_sin)
            query = torch.cat((turned[0], query[..., self.rotary_dim :]), dim=-1)
            key = torch.cat((turned[1], key[..., self.rotary_dim :]), dim=-1)
            key, value = self._cached(key), self._cached(value)
            attended = attend(query, key, value, shape.head_dim**-0.5, window or 0, 0.0)
            residual = residual + linear(attended.flatten(1), matrices[1], biases[1])
            gate, up = linear(rms_norm(residual, norms[1], 1e-5), matrices[2], biases[2]).chunk(2, dim=1)
            residual = residual + linear(torch.nn.functional.silu(gate) * up, matrices[3], biases[3])
        return linear(rms_norm(residual, torch.ones(shape.hidden), 1e-5), self.head, None)

    def _cached(self, x: torch.Tensor) -> torch.Tensor:
        if self.shape.cache != torch.int8:
            return x.to(self.shape.cache).float()
        values, scales = quantize_rows(x, torch.int8)
        return values.float() * scales.unsqueeze(-1)


def linear(x: torch.Tensor, weight: AnyWeight, bias: torch.Tensor | None) -> torch.Tensor:
    if isinstance(weight, torch.Tensor):
        return torch.nn.functional.linear(x.bfloat16().float(), weight.float(), bias)
    return quantized_linear(x, weight, bias)


def batch_of(model: Model, *sequences: tuple[list[int], int, int], wanted: list[int] | None = None) -> StepBatch:
    """Sequences of (new tokens, tokens before them, which quarter of the blocks); wanted: the last rows."""
    block_size = model.shape.block_size
    starts = [0]
    for tokens, _, _ in sequences:
        starts.append(starts[-1] + len(tokens))
    tables = [
        [(5 * block + 16 * place) % 16 + 16 * place for block in range(-(-(context + len(tokens)) // block_size))]
        for tokens, context, place in sequences
    ]
    offsets = np.cumsum([0, *map(len, tables)])[:-1]
    arrays = (
        [token for tokens, _, _ in sequences for token in tokens],
        starts,
        [context for _, context, _ in sequences],
        [block for table in tables for block in table],
        offsets,
        [end - 1 for end in starts[1:]] if wanted is None else wanted,
    )
    return StepBatch(*(np.array(values, dtype=np.int32) for values in arrays))


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 131, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_torch_operators(shape: Shape) -> None:
    model = Model(shape)
    length = min(150, 16 * shape.block_size)
    tokens = tokens_of(length)
    logits = model.step.logits(batch_of(model, (tokens, 0, 1), wanted=list(range(length))))
    wanted = model.expected(tokens)
    # One number that rounds to the other side moves a logit a little; whatever is wrong moves it by its own size.
    error = (logits - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert error.max() < (0.06 if shape.cache == torch.int8 else 0.04), error
    assert error.median() < 0.015


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_neither_cuts_nor_company_change_a_row(shape: Shape) -> None:
    model = Model(shape)
    length = min(140, 16 * shape.block_size)
    tokens = tokens_of(length)
    whole = model.step.logits(batch_of(model, (tokens, 0, 0)))
    cut = length // 2 - 3
    model.step.logits(batch_of(model, (tokens[:cut], 0, 1)))
    others = [(tokens_of(7, 1), 0, 2), ([5], 0, 3)]
    in_company = model.step.logits(batch_of(model, others[0], (tokens[cut:-1], cut, 1), others[1]))
    assert in_company.isfinite().all()
    last = (tokens[-1:], length - 1, 1)
    assert torch.equal(model.step.logits(batch_of(model, last))[0], whole[0])
    decodes = batch_of(model, ([9], 7, 2), last, ([8], 1, 3), ([3], 0, 0))
    assert torch.equal(model.step.logits(decodes)[1], whole[0])


@pytest.mark.parametrize(("shape", "length"), [(Shape(window=900), 1280), (Shape(block_size=32), 2620)], ids=str)
def test_several_spans_of_keys_are_put_together(shape: Shape, length: int) -> None:
    """Longer contexts than the spans that decodes share out; from 2,048 tokens on they are longer."""
    model = Model(replace(shape, cache=torch.bfloat16))
    tokens = [token % 131 for token in tokens_of(length, 5)]
    for start in range(0, length, MAX_TOKENS):
        last = model.step.logits(long_batch(tokens[start : start + MAX_TOKENS], start))
    wanted = model.expected(tokens)[-1]
    assert (last[0] - wanted).norm() / wanted.norm() < 0.04
    alone = model.step.logits(long_batch(tokens[-1:], length - 1))
    assert torch.equal(alone, last)


def long_batch(tokens: list[int], context_len: int) -> StepBatch:
    """One sequence over all blocks, the last first."""
    arrays = (tokens, [0, len(tokens)], [context_len], range(NUM_BLOCKS)[::-1], [0], [len(tokens) - 1])
    return StepBatch(*(np.array(values, dtype=np.int32) for values in arrays))


def test_few_sequences_touch_little_memory() -> None:
    """A block has all layers' keys and values of its tokens; the next one lies behind it."""
    model = Model(replace(SHAPES[0], cache=torch.bfloat16))
    model.step.logits(batch_of(model, (tokens_of(16), 0, 1)))
    written = model.cache.flatten().isfinite().nonzero()
    block = model.cache.numel() // NUM_BLOCKS
    assert len(written) == block
    assert (int(written.min()), int(written.max())) == (16 * block, 17 * block - 1)


def test_threads_and_variants_change_nothing() -> None:
    tokens = tokens_of(190)
    results = []
    for variant in VARIANTS:
        for num_threads in (1, 2, 3):
            model = Model(SHAPES[0], variant, num_threads)
            results.append(model.step.logits(batch_of(model, (tokens, 0, 0), ([4], 0, 1))))
            assert torch.equal(model.step.logits(batch_of(model, (tokens[-1:], len(tokens) - 1, 0)))[0], results[0][0])
    assert all(torch.equal(result, results[0]) for result in results)


def test_best_and_head_agree_with_the_logits() -> None:
    model = Model(SHAPES[0])
    batch = batch_of(model, (tokens_of(30), 0, 0), wanted=[3, 29, 7])
    logits = model.step.logits(batch)
    ids, best = model.step.best(batch)
    assert ids.tolist() == logits.argmax(-1).tolist()
    assert best.tolist() == logits.amax(-1).tolist()
    hidden = model.step.hidden(batch)
    assert torch.equal(model.step.head(hidden), logits)
    assert torch.equal(model.step.head(hidden.repeat(100, 1))[-3:], logits)


def test_the_first_of_equal_tokens_is_the_best() -> None:
    shape = replace(SHAPES[0], vocab=300)
    model = Model(shape)
    assert isinstance(model.head, Int8Weight)
    model.head.values[200:] = model.head.values[:100]
    model.head.scales[200:] = model.head.scales[:100]
    model = _with_head(model)
    ids, _ = model.step.best(batch_of(model, (tokens_of(60), 0, 0), wanted=list(range(60))))
    assert ids.max() < 200


def _with_head(model: Model) -> Model:
    model.step = model._make_step(None, BEST, 2)
    return model


def test_logits_that_are_not_finite_are_told() -> None:
    model = Model(SHAPES[0])
    model.norms[1][0][5] = torch.nan
    model = _with_head(model)
    _, best = model.step.best(batch_of(model, ([1, 2, 3], 0, 0)))
    assert np.isnan(best).all()


def test_no_wanted_rows_and_no_tokens() -> None:
    model = Model(SHAPES[0])
    assert model.step.logits(batch_of(model, (tokens_of(9), 0, 0), wanted=[])).shape == (0, 131)
    assert model.step.logits(batch_of(model)).shape == (0, 131)


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": np.array([1, 131], dtype=np.int32)},
        {"token_ids": np.array([1, -1], dtype=np.int32)},
        {"blocks": np.array([NUM_BLOCKS], dtype=np.int32)},
        {"context_lens": np.array([POSITIONS - 1], dtype=np.int32)},
        {"starts": np.array([0, 1], dtype=np.int32)},
        {"wanted_rows": np.array([2], dtype=np.int32)},
    ],
)
def test_a_batch_outside_of_the_model_is_refused(change: dict[str, np.ndarray]) -> None:
    model = Model(SHAPES[0])
    with pytest.raises(ValueError, match="outside of the model's"):
        model.step.logits(replace(batch_of(model, ([1, 2], 0, 0)), **change))


def test_more_tokens_than_a_step_can_have_are_refused() -> None:
    model = Model(SHAPES[0])
    with pytest.raises(ValueError, match="expected at most 200 tokens, got 201"):
        model.step.logits(batch_of(model, (tokens_of(201), 0, 0)))
