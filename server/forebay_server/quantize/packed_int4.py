"""Four-bit weights as compressed-tensors packs them: eight numbers a word, the first lowest, 8 added to each."""

import torch

from forebay_server.quantize.method import QuantizedMatrix


def packed(numbers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> QuantizedMatrix:
    """Pack a matrix.

    Args:
        numbers: [out_features, in_features], -8 to 7.
        scales: [out_features, num_groups], bfloat16.
        zeros: [out_features, num_groups], -8 to 7: the number that means zero; None: 0.
    """
    rows, columns = numbers.shape
    group_size = columns // scales.shape[1]
    parts = {
        "weight_packed": _words(numbers),
        "weight_scale": scales,
        "weight_shape": torch.tensor([rows, columns]),
    }
    shifted = numbers.float().view(rows, -1, group_size)
    if zeros is not None:
        parts["weight_zero_point"] = _words(zeros.T).T.contiguous()
        shifted = shifted - zeros.float().unsqueeze(2)
    return QuantizedMatrix(parts, (shifted * scales.float().unsqueeze(2)).flatten(1))


def _words(numbers: torch.Tensor) -> torch.Tensor:
    """[rows, n] of -8 to 7 -> [rows, n / 8] of int32."""
    halves = (numbers + 8).to(torch.uint8).reshape(numbers.shape[0], -1, 2)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).contiguous().view(torch.int32)
