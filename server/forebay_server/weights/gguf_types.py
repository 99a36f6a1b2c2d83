"""The number formats of GGUF files, and how many bytes their blocks take.

The `gguf` package knows them, too, and imports numpy and much else, in every process that reads a header.
Source: the ggml project; a test compares with the package.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType


class GgufType(IntEnum):
    """How a tensor is stored."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41


BLOCKS: Mapping[GgufType, tuple[int, int]] = MappingProxyType(
    {
        **{GgufType.F32: (1, 4), GgufType.F16: (1, 2), GgufType.BF16: (1, 2), GgufType.F64: (1, 8)},
        **{GgufType.I8: (1, 1), GgufType.I16: (1, 2), GgufType.I32: (1, 4), GgufType.I64: (1, 8)},
        **{GgufType.Q4_0: (32, 18), GgufType.Q4_1: (32, 20), GgufType.Q5_0: (32, 22), GgufType.Q5_1: (32, 24)},
        **{GgufType.Q8_0: (32, 34), GgufType.Q8_1: (32, 40), GgufType.Q1_0: (128, 18)},
        **{GgufType.Q2_K: (256, 84), GgufType.Q3_K: (256, 110), GgufType.Q4_K: (256, 144)},
        **{GgufType.Q5_K: (256, 176), GgufType.Q6_K: (256, 210), GgufType.Q8_K: (256, 292)},
        **{GgufType.IQ1_S: (256, 50), GgufType.IQ1_M: (256, 56)},
        **{GgufType.IQ2_XXS: (256, 66), GgufType.IQ2_XS: (256, 74), GgufType.IQ2_S: (256, 82)},
        **{GgufType.IQ3_XXS: (256, 98), GgufType.IQ3_S: (256, 110)},
        **{GgufType.IQ4_NL: (32, 18), GgufType.IQ4_XS: (256, 136)},
        **{GgufType.TQ1_0: (256, 54), GgufType.TQ2_0: (256, 66)},
        **{GgufType.MXFP4: (32, 17), GgufType.NVFP4: (64, 36)},
    }
)
"""Numbers in a block, and its bytes."""
