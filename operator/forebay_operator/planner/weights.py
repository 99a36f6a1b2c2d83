"""Weights of one rank: how tensor and pipeline parallelism cut each matrix, and the bytes that are left."""

from forebay_operator.facts.model_facts import ModelFacts, TensorGroup
from forebay_operator.planner.formats import EMBEDDING, HEAD, WeightScheme

FIRST_STAGE = (EMBEDDING,)
LAST_STAGE = ("norm", HEAD)


def local_shape(group: TensorGroup, tensor: int, num_kv_heads: int) -> tuple[int, int]:
    """Rows and columns that one rank holds of one matrix.

    Args:
        group: the matrix.
        tensor: tensor parallel size; must divide what `split_problem` says it must.
        num_kv_heads: KV heads of the model; where there are fewer than ranks each rank keeps one.
    """
    if group.split in ("rows", "heads"):
        return group.rows // tensor, group.cols
    if group.split in ("cols", "head_cols"):
        return group.rows, group.cols // tensor
    if group.split == "vocab":  # padded, so that every rank has as many rows
        return -(-group.rows // tensor), group.cols
    if group.split == "kv_heads":
        return group.rows // num_kv_heads * max(1, num_kv_heads // tensor), group.cols
    return group.rows, group.cols


def weight_bytes_per_rank(facts: ModelFacts, scheme: WeightScheme, plain_bytes: int, tensor: int, pipeline: int) -> int:
    """Bytes of the weights on the fullest rank.

    Args:
        facts: the model.
        scheme: of the matrices that can be quantized.
        plain_bytes: bytes of a number in all other tensors.
        tensor: ranks that share each matrix.
        pipeline: stages that share the layers; the fullest has the layers rounded up.
    """
    in_layers = first = last = 0
    for group in facts.tensors:
        rows, cols = local_shape(group, tensor, facts.num_kv_heads)
        held = _held(facts, group, scheme, tensor)
        one = rows * cols * plain_bytes if held is None else held.matrix_bytes(rows, cols)
        if group.layers:
            in_layers += -(-group.layers // pipeline) * group.copies * one
        elif group.name in FIRST_STAGE:
            first += one
            last += one if facts.tied_embeddings and pipeline > 1 else 0  # the tied head needs it again
        else:
            last += one
    return in_layers + (first + last if pipeline == 1 else max(first, last))


def _held(facts: ModelFacts, group: TensorGroup, scheme: WeightScheme, tensor: int) -> WeightScheme | None:
    """The scheme of one matrix; None: plain numbers."""
    if scheme.act_order and tensor > 1 and group.split in ("cols", "head_cols"):
        return None  # a rank has some columns of every group, and no form holds these
    if group.name in (EMBEDDING, HEAD) and not group.quantizable:
        return scheme.of_end(group.name, tied=facts.tied_embeddings)
    return scheme if group.quantizable else None


def split_problem(facts: ModelFacts, scheme: WeightScheme, tensor: int) -> str | None:
    """Why the model cannot be cut into so many parts; None when it can.

    The reasons name the layer and both numbers.
    """
    if tensor == 1:
        return None
    if facts.num_heads % tensor:
        return f"{facts.num_heads} attention heads cannot be divided by tensor parallel size {tensor}"
    kv_heads = facts.num_kv_heads
    if kv_heads % tensor and tensor % kv_heads:
        return f"{kv_heads} KV heads can neither be divided by tensor parallel size {tensor} nor repeated evenly on it"
    for group in facts.tensors:
        size = group.rows if group.split == "rows" else group.cols if group.split == "cols" else 0
        if size % tensor:
            return f"{group.name}: {size} {group.split} cannot be divided by tensor parallel size {tensor}"
        if group.quantizable and scheme.from_checkpoint and (cut := _cut_group(facts, group, scheme, tensor)):
            return cut
    return None


def _cut_group(facts: ModelFacts, group: TensorGroup, scheme: WeightScheme, tensor: int) -> str | None:
    """A quantization group or block of the checkpoint that tensor parallelism would cut through."""
    rows, cols = local_shape(group, tensor, facts.num_kv_heads)
    if group.split in ("cols", "head_cols"):
        unit = scheme.block or scheme.group_size
        if unit > 1 and cols % unit:
            return _cut_text(group.name, f"{group.cols} columns", tensor, cols, unit, scheme.format)
    elif group.split != "none":
        unit = scheme.block or (32 // scheme.bits if scheme.format in ("gptq", "awq") else 1)
        if unit > 1 and rows % unit:
            return _cut_text(group.name, f"{group.rows} rows", tensor, rows, unit, scheme.format)
    return None


def _cut_text(name: str, whole: str, tensor: int, part: int, unit: int, scheme_format: str) -> str:
    return f"{name}: {whole} over {tensor} ranks are {part} each, which cuts through {scheme_format} groups of {unit}"
