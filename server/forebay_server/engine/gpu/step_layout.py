"""Where each input of a step lies in one buffer, so that one copy brings them all to the device. Pure.

Sections start at multiples of 64 bytes and block tables are multiples of 16 blocks wide: Triton compiles a kernel anew
for pointers and strides that are not divisible by 16, which must not happen while serving.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from forebay_server.engine.flat_batch import NUM_SAMPLING_VALUES

ALIGNMENT = 64
WIDTH_MULTIPLE = 16

HostViews = dict[str, npt.NDArray[Any]]
DeviceViews = dict[str, torch.Tensor]
"""The inputs of a step, by name."""

_DTYPES = {"int64": (np.int64, torch.int64), "int32": (np.int32, torch.int32), "float32": (np.float32, torch.float32)}


@dataclass(frozen=True, slots=True)
class StepSizes:
    """How much of everything a step has, padding included."""

    num_tokens: int
    num_decodes: int
    """Sequences with one new token: the first rows of the batch."""
    num_prefills: int
    """Sequences with several."""
    table_width: int
    """Blocks in a row of the block table."""
    num_rows: int
    """Rows whose hidden states are wanted."""
    num_sampled: int = 0
    """Rows that are sampled on the device."""
    num_pending: int = 0
    """Rows whose token the step before samples, at most."""


@dataclass(frozen=True, slots=True)
class Section:
    """One input."""

    offset: int
    """Bytes from the start of the buffer."""
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Without what follows for alignment."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class StepLayout:
    """All inputs of a step in one buffer."""

    sections: Mapping[str, Section]
    num_bytes: int

    def on_host(self, buffer: npt.NDArray[np.uint8]) -> HostViews:
        """Views of a buffer of at least num_bytes bytes, by name."""
        return {
            name: buffer[part.offset : part.offset + part.num_bytes].view(_DTYPES[part.dtype][0]).reshape(part.shape)
            for name, part in self.sections.items()
        }

    def on_device(self, buffer: torch.Tensor) -> DeviceViews:
        """The same views of a uint8 tensor."""
        return {
            name: buffer[part.offset : part.offset + part.num_bytes].view(_DTYPES[part.dtype][1]).view(part.shape)
            for name, part in self.sections.items()
        }


def step_layout(sizes: StepSizes) -> StepLayout:
    """Lay out a step's inputs; `step_inputs` fills them."""
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_ids": ("int64", (sizes.num_tokens,)),
        "positions": ("int64", (sizes.num_tokens,)),
        "slot_mapping": ("int64", (sizes.num_tokens,)),
        "rows": ("int64", (sizes.num_rows,)),
        "pending": ("int64", (2, sizes.num_pending)),
        "seq_lens": ("int32", (sizes.num_decodes,)),
        "context_lens": ("int32", (sizes.num_prefills,)),
        "cu_seqlens": ("int32", (sizes.num_prefills + 1,)),
        "sampling": ("float32", (NUM_SAMPLING_VALUES, sizes.num_sampled)),
        "block_table": ("int32", (sizes.num_decodes + sizes.num_prefills, sizes.table_width)),
    }
    sections: dict[str, Section] = {}
    offset = 0
    for name, (dtype, shape) in wanted.items():
        section = Section(offset, shape, dtype)
        sections[name] = section
        offset += -(-section.num_bytes // ALIGNMENT) * ALIGNMENT
    return StepLayout(sections, offset)


def table_width(num_blocks: int) -> int:
    """Blocks in a row of a table that holds so many: at least one multiple of 16."""
    return max(1, -(-num_blocks // WIDTH_MULTIPLE)) * WIDTH_MULTIPLE
