"""Number formats: bytes of a matrix with its scales, and which formats a checkpoint may be served in."""

from dataclasses import dataclass
from typing import Final

from forebay_operator.facts.model_facts import Checkpoint, Dtype

NUMBER_BYTES: Final = {"float32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
"""Bytes of one number of the KV cache, or of an unquantized tensor."""

DTYPES: Final[dict[str, Dtype]] = {"float32": "float32", "bf16": "bfloat16", "fp16": "float16"}
DTYPE_FORMATS: Final = {dtype: name for name, dtype in DTYPES.items()}

UNQUANTIZED: Final = frozenset(DTYPES)

SUPPORT_NAMES: Final = {"fp8-block": "fp8", "gptq": "int4", "awq": "int4"}
"""Checkpoint formats to the names that accelerator profiles use; others are the same."""

INT4_GROUP: Final = 128
"""Columns that share a scale when the engine itself converts to int4."""


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
    from_checkpoint: bool = False
    """The files hold it so; groups and blocks may not be cut."""

    @property
    def support_name(self) -> str:
        """The format's name in accelerator profiles."""
        return "int8" if self.format == "gptq" and self.bits == 8 else SUPPORT_NAMES.get(self.format, self.format)

    def matrix_bytes(self, rows: int, cols: int) -> int:
        """Bytes of a matrix [rows, cols] with scales, zero points and group indices."""
        numbers = -(-rows * cols * self.bits // 8)
        if self.format in UNQUANTIZED:
            return numbers
        if self.block:
            return numbers + 4 * -(-rows // self.block) * -(-cols // self.block)
        if self.format in ("fp8", "int8"):
            return numbers + 4 * rows
        groups = rows * (1 if self.group_size <= 0 else -(-cols // self.group_size))
        if self.format in ("mxfp4", "nvfp4"):
            return numbers + groups
        scales = 2 * groups + (groups * self.bits // 8 if self.zero_points else 0)
        return numbers + scales + (4 * cols if self.format == "gptq" else 0)


def load_time_scheme(number_format: str) -> WeightScheme:
    """The scheme that the engine itself makes of an unquantized checkpoint."""
    bits = {"float32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}[number_format]
    return WeightScheme(number_format, bits, INT4_GROUP if number_format == "int4" else 0)


def checkpoint_scheme(checkpoint: Checkpoint) -> WeightScheme:
    """The scheme of a checkpoint that is already quantized."""
    default_bits = {"fp8": 8, "fp8-block": 8, "int8": 8}.get(checkpoint.format, 4)
    return WeightScheme(
        checkpoint.format,
        checkpoint.bits or default_bits,
        checkpoint.group_size,
        checkpoint.block,
        checkpoint.zero_points,
        from_checkpoint=True,
    )
