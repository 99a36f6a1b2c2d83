"""Number formats: bytes of a matrix with its scales, and which formats a checkpoint may be served in."""

from dataclasses import dataclass
from typing import Final

from forebay_operator.facts.model_facts import Checkpoint, Dtype
from forebay_operator.planner.request import PRECISION

NUMBER_BYTES: Final = {"float32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
"""Bytes of one number of the KV cache, or of an unquantized tensor."""

DTYPES: Final[dict[str, Dtype]] = {"float32": "float32", "bf16": "bfloat16", "fp16": "float16"}
DTYPE_FORMATS: Final = {dtype: name for name, dtype in DTYPES.items()}

UNQUANTIZED: Final = frozenset(DTYPES)

SUPPORT_NAMES: Final = {"fp8-block": "fp8", "gptq": "int4", "awq": "int4", "gguf": "int4"}
"""Checkpoint formats to the names that accelerator profiles use; others are the same."""

INT4_GROUP: Final = 32
"""Columns that share a scale when the engine itself converts to int4."""
INT8_HEAD_GROUP: Final = 32
"""Columns that share a scale in a head of eight bits that the engine itself makes on CPUs; elsewhere a row's do."""
INT8_SCALE: Final = 4
"""Bytes; of a row or of a group."""
INT4_SCALE: Final = 2

EMBEDDING, HEAD = "embed_tokens", "lm_head"


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How one linear layer's numbers lie in memory."""

    format: str
    bits: int = 16
    group_size: int = 0
    """Columns that share a scale; 0: none, -1: a whole row."""
    block: int = 0
    """Edge of a square block that shares a scale."""
    zero_points: bool = False
    act_order: bool = False
    from_checkpoint: bool = False
    """The files hold it so; groups and blocks may not be cut."""
    gguf_numbers: int = 0
    """With `gguf`, whose types differ from matrix to matrix: numbers, and what they take, over all of them."""
    gguf_bytes: int = 0
    ends: tuple[str, ...] = ()
    """Embedding or head, where they have the scheme, too."""
    called: str = ""
    """For people, where it is not the format's name: the type of most of a GGUF file."""
    head_group: int = 0
    """As group_size, of a head that the engine makes with eight bits."""
    made_of: Checkpoint | None = None
    """The GGUF file that a format is made of while loading: parts of it that have as many bits are kept."""

    @property
    def name(self) -> str:
        """How plans call it."""
        return self.called or self.format

    @property
    def support_name(self) -> str:
        """The format's name in accelerator profiles."""
        is_int8 = self.format in ("gptq", "gguf") and self.bits == 8
        return "int8" if is_int8 else SUPPORT_NAMES.get(self.format, self.format)

    def matrix_bytes(self, rows: int, cols: int) -> int:
        """Bytes of a matrix [rows, cols] as the engine holds it, with scales, zero points and group indices."""
        numbers = -(-rows * cols * self.bits // 8)
        if self.format in UNQUANTIZED:
            return numbers
        if self.gguf_numbers:
            return -(-rows * cols * self.gguf_bytes // self.gguf_numbers)
        if self.made_of is not None:
            return _made_of_gguf(self.format, self.made_of, rows, cols)
        if self.block:
            return numbers + 4 * -(-rows // self.block) * -(-cols // self.block)
        groups = rows * (1 if self.group_size <= 0 else -(-cols // self.group_size))
        if self.bits == 8 and not self.from_checkpoint and self.group_size and cols % self.group_size:
            groups = rows  # no whole groups: the engine takes a scale a row
        if self.bits == 8:  # fp8, int8, and eight bits of GPTQ: the engine multiplies them as int8
            return rows * cols + INT8_SCALE * groups
        if self.format in ("mxfp4", "nvfp4"):
            return numbers + groups
        if not self.from_checkpoint and cols % INT4_GROUP:
            return rows * cols + INT8_SCALE * rows  # no whole groups: the engine takes int8 instead
        if self.from_checkpoint:
            groups = rows * -(-cols // _held_group(cols if self.group_size <= 0 else self.group_size))
        scales = groups * (INT4_SCALE + (1 if self.zero_points else 0))
        return numbers + scales + (4 * cols if self.act_order else 0)

    def of_end(self, name: str, *, tied: bool) -> "WeightScheme | None":
        """The scheme of the embedding or the head; None: it is not quantized.

        What the engine converts itself includes the head, also where it is the embedding, with eight bits at least.
        """
        if self.format in UNQUANTIZED:
            return None
        if self.from_checkpoint:
            return self if name in self.ends else None
        if name != (EMBEDDING if tied else HEAD):
            return None
        if self.made_of is not None and name in self.made_of.gguf_int8_ends:
            return WeightScheme("int8", 8, INT4_GROUP)
        if self.format not in ("int4", "int8"):
            return self
        return WeightScheme("int8", 8, self.head_group)


def _held_group(stored: int) -> int:
    """The group in which the engine holds a stored group of four bits: itself, or parts of 64 or 32 of it."""
    if stored in (32, 64) or stored % 128 == 0:
        return stored
    return 64 if stored % 64 == 0 else 32


def load_time_scheme(number_format: str, checkpoint: Checkpoint | None = None, *, is_cpu: bool = False) -> WeightScheme:
    """The scheme that the engine itself makes while loading.

    Args:
        number_format: a step of the ladder.
        checkpoint: what it is made of; None: plain numbers.
        is_cpu: whether it is for CPUs.
    """
    bits = {"float32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}[number_format]
    keeps_parts = number_format in ("int8", "int4") and checkpoint is not None and checkpoint.gguf_layer_numbers > 0
    return WeightScheme(
        number_format,
        bits,
        INT4_GROUP if number_format == "int4" else 0,
        head_group=INT8_HEAD_GROUP if is_cpu else 0,
        made_of=checkpoint if keeps_parts else None,
    )


def _made_of_gguf(number_format: str, checkpoint: Checkpoint, rows: int, cols: int) -> int:
    """A matrix of which every part is like the average of the file's layers."""
    in_eight = checkpoint.gguf_layer_int8
    in_four = checkpoint.gguf_layer_numbers - in_eight
    made = load_time_scheme(number_format).matrix_bytes(rows, cols)
    if number_format == "int8":
        kept = WeightScheme("int8", 8, INT4_GROUP).matrix_bytes(rows, cols)
        return (kept * in_eight + made * in_four) // (in_eight + in_four)
    return (made * in_eight + rows * cols * checkpoint.gguf_layer_int4_bytes) // (in_eight + in_four)


def is_quantized(checkpoint: Checkpoint) -> bool:
    """Whether the files hold something else than plain numbers."""
    return checkpoint.format not in UNQUANTIZED or checkpoint.gguf_numbers > 0


def checkpoint_name(checkpoint: Checkpoint) -> str:
    """The format of the files, for people: `gptq`, `Q4_K`."""
    return checkpoint.gguf_type if checkpoint.gguf_numbers else checkpoint.format


def checkpoint_scheme(checkpoint: Checkpoint) -> WeightScheme:
    """The scheme of a checkpoint that is already quantized, where the engine keeps it."""
    if checkpoint.gguf_numbers:
        return WeightScheme(
            "gguf",
            8 if checkpoint.gguf_bytes * 4 > checkpoint.gguf_numbers * 3 else 4,
            from_checkpoint=True,
            gguf_numbers=checkpoint.gguf_numbers,
            gguf_bytes=checkpoint.gguf_bytes,
            ends=checkpoint.gguf_ends,
            called=checkpoint.gguf_type,
        )
    default_bits = {"fp8": 8, "fp8-block": 8, "int8": 8}.get(checkpoint.format, 4)
    return WeightScheme(
        checkpoint.format,
        checkpoint.bits or default_bits,
        checkpoint.group_size,
        checkpoint.block,
        checkpoint.zero_points,
        checkpoint.act_order,
        from_checkpoint=True,
    )


def checkpoint_precision(checkpoint: Checkpoint) -> int:
    """The step of the ladder that the files themselves stand on, whatever they are converted to."""
    if checkpoint.gguf_numbers:
        return 1 if checkpoint.gguf_type.startswith("Q8") else 0
    if checkpoint.format in ("gptq", "int4") and checkpoint.bits == 8:
        return PRECISION["int8"]
    return {"fp8-block": PRECISION["fp8"]}.get(checkpoint.format, PRECISION.get(checkpoint.format, 0))
