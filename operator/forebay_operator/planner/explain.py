"""The arithmetic of an attempt in words, a line a step; and why every other attempt lost."""

from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.planner.attempt import Attempt
from forebay_operator.planner.formats import UNQUANTIZED, checkpoint_name, is_quantized
from forebay_operator.planner.kv_cache import SCALE_BYTES, kv_bytes_per_token
from forebay_operator.planner.request import PlanRequest
from forebay_operator.planner.result import Rejected
from forebay_operator.planner.search import Search
from forebay_operator.planner.wording import gpus, size


def explanation(request: PlanRequest, attempt: Attempt) -> tuple[str, ...]:
    """The lines of `Plan.explanation`."""
    memory = attempt.memory
    for_batch = size(memory.logits + memory.graphs)
    return (
        _model_line(request.facts),
        _format_line(request, attempt),
        f"KV cache: {kv_arithmetic(request.facts, attempt.option.kv_format)} a token",
        *_special_kv_lines(request.facts, attempt),
        budget_line(request, attempt),
        _cut_line(request, attempt),
        f"each rank: weights {size(memory.weights)} + KV cache {size(memory.kv_cache)} + activations "
        f"{size(memory.activations)} + logits {size(memory.logits)} + graphs {size(memory.graphs)} + runtime "
        f"{size(memory.runtime)} + communication {size(memory.communication)} + margin {size(memory.margin)} = "
        f"{size(memory.used)} of {size(memory.total)}",
        f"steps: at most {attempt.max_num_seqs} sequences (they reserve no cache, but {for_batch} of logits "
        f"and graphs) and {attempt.max_num_batched_tokens} tokens (activations {size(memory.activations)})",
    )


def rejections(request: PlanRequest, found: Search) -> tuple[Rejected, ...]:
    """The entries of `rejected`: what was ruled out, and why each attempt lost."""
    return (*found.ruled_out, *(Rejected(a.option.name, _why_lost(request, a, found.chosen)) for a in found.attempts))


def kv_arithmetic(facts: ModelFacts, kv_format: str) -> str:
    """`2 x 80 layers x 8 KV heads x 128 x 2 B = 327,680 B`."""
    number = {"float32": 4, "bf16": 2, "fp16": 2}.get(kv_format, 1)
    parts = []
    for kind in facts.kv_layers:
        scale = f" + {SCALE_BYTES} B scale" if kv_format == "int8" else ""
        if kind.kind == "latent":
            parts.append(f"{kind.layers} layers x ({kind.head_dim} x {number} B{scale})")
        else:
            head = f"({kind.head_dim} x {number} B{scale})" if scale else f"{kind.head_dim} x {number} B"
            parts.append(f"2 x {kind.layers} layers x {kind.num_kv_heads} KV heads x {head}")
    return f"{' + '.join(parts)} = {kv_bytes_per_token(facts, kv_format):,} B"


def budget_line(request: PlanRequest, attempt: Attempt) -> str:
    """What was asked for, in tokens and bytes over all ranks."""
    budget, shape = request.kv_budget, attempt.shape
    per_token = kv_bytes_per_token(request.facts, attempt.option.kv_format)
    total = f"{attempt.kv_tokens:,} tokens x {per_token:,} B = {size(attempt.kv_tokens * per_token)}"
    if budget.kind == "sequences":
        one = shape.sequence_tokens
        wish = f"{budget.amount} sequences x {one:,} tokens x {per_token:,} B = {size(budget.amount * one * per_token)}"
        return f"KV budget: {wish} (one sequence {size(one * per_token)})"
    if budget.kind == "tokens":
        return f"KV budget: {total}"
    if budget.kind == "bytes":
        return f"KV budget: {size(budget.amount)} over all ranks are {total}"
    free = attempt.memory.total - attempt.memory.fixed
    return f"KV budget: {budget.amount}% of the {size(max(free, 0))} that are left on each rank: {total}"


def _model_line(facts: ModelFacts) -> str:
    checkpoint = facts.checkpoint
    active = facts.num_active_parameters
    experts = f", {active:,} active for a token" if any(group.active for group in facts.tensors) else ""
    files = f"; files {size(checkpoint.file_bytes)}" if checkpoint.file_bytes else ""
    return (
        f"model: {facts.architecture}, {facts.num_parameters:,} parameters{experts}, {facts.num_layers} layers{files}"
    )


def _format_line(request: PlanRequest, attempt: Attempt) -> str:
    option, accelerator = attempt.option, request.accelerator
    scheme = option.formats.scheme
    support = accelerator.support(scheme.support_name)
    if scheme.from_checkpoint:
        text = f"weights: {checkpoint_name(request.facts.checkpoint)}, as the checkpoint has them"
    elif scheme.format in UNQUANTIZED:
        text = f"weights: {scheme.format}, {_origin(request.facts, scheme.format)}"
    else:
        text = f"weights: {scheme.format}, converted while loading{_from(request.facts)}; other tensors "
        text += f"{option.dtype_format}"
    if scheme.format not in UNQUANTIZED:
        text += f"; {support} on {accelerator.name}"
        if support == "dequantized":
            multiplied = "int8" if accelerator.device == "cpu" else option.dtype_format
            text += f": stored so, multiplied as {multiplied}"
    if request.weights == "auto" and not scheme.from_checkpoint and attempt.fits:
        text += "; the most precise allowed format that meets the KV budget"
    return text


def _origin(facts: ModelFacts, number_format: str) -> str:
    """Where unquantized weights come from."""
    checkpoint = facts.checkpoint
    if is_quantized(checkpoint):
        return f"dequantized from {checkpoint_name(checkpoint)} while loading"
    if checkpoint.container == "gguf":
        return f"from {checkpoint.gguf_type}"
    return "as the checkpoint has them" if checkpoint.format == number_format else f"from {checkpoint.format}"


def _from(facts: ModelFacts) -> str:
    return f" from {checkpoint_name(facts.checkpoint)}" if is_quantized(facts.checkpoint) else ""


def _special_kv_lines(facts: ModelFacts, attempt: Attempt) -> list[str]:
    """What is unusual about the cache: windows, latents, repeated heads."""
    lines = []
    tensor = attempt.option.tensor
    for kind in facts.kv_layers:
        if kind.kind == "sliding":
            lines.append(
                f"KV cache: {kind.layers} layers keep only the last {kind.window:,} tokens of a sequence: "
                f"{attempt.shape.sliding_tokens(attempt.kv_tokens):,} slots instead of {attempt.kv_tokens:,}"
            )
        elif kind.kind == "latent" and tensor > 1:
            lines.append(f"KV cache: latent, so each of the {tensor} ranks holds all of it")
    if facts.kv_layers[0].kind != "latent" and tensor > facts.num_kv_heads:
        lines.append(
            f"KV cache: {facts.num_kv_heads} KV heads on {tensor} ranks, so each is held "
            f"{tensor // facts.num_kv_heads} times"
        )
    return lines


def _cut_line(request: PlanRequest, attempt: Attempt) -> str:
    option = attempt.option
    ranks = f"tensor parallel size {option.tensor}"
    if option.pipeline > 1:
        ranks += f", pipeline parallel size {option.pipeline}"
    why = "; the fewest that fit" if request.tensor == "auto" and attempt.fits else ""
    used = gpus(option.num_ranks, request.accelerator.name)
    return f"parallelism: {ranks} ({used}, a node has {request.node_gpus}){why}"


def _why_lost(request: PlanRequest, attempt: Attempt, chosen: Attempt | None) -> str:
    memory = attempt.memory
    if memory.headroom < 0:
        return (
            f"needs {size(memory.used)} a rank, has {size(memory.total)} (weights {size(memory.weights)}, "
            f"KV cache {size(memory.kv_cache)})"
        )
    if not attempt.fits:
        return (
            f"its cache holds {attempt.kv_tokens:,} tokens, less than one sequence of {attempt.shape.sequence_tokens:,}"
        )
    if chosen is None:
        return "fits"
    if attempt.option.formats == chosen.option.formats:
        return f"fits, but takes {attempt.option.num_ranks} accelerators instead of {chosen.option.num_ranks}"
    return f"fits {_on(attempt.option.num_ranks)}, but is less precise than the chosen one"


def _on(num_ranks: int) -> str:
    return "on one" if num_ranks == 1 else f"on {num_ranks}"
