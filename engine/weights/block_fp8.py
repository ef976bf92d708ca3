"""FP8 weights in square blocks, as DeepSeek-V3 and GLM-5 store them.

Beside each matrix X of float8_e4m3 numbers lies X_scale_inv, one float32 per block (128 x 128 by
`quantization_config.weight_block_size`); despite its name it is what to multiply by. Blocks at the
right and lower edge are cropped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.types import ModelFileError

SCALE_SUFFIX = "_scale_inv"


def block_grid(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Blocks of a matrix of this shape, counting those at the edges."""
    return tuple(-(-size // side) for size, side in zip(shape, block, strict=True))


def dequantise_blocks(codes: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """codes [N, K] float8, scales [ceil(N / B), ceil(K / B)] -> [N, K] float32."""
    row_blocks = torch.arange(codes.shape[0]) // block[0]
    return dequantise_block_rows(codes, scales[row_blocks], block[1])


def dequantise_block_rows(codes: Tensor, scales: Tensor, width: int) -> Tensor:
    """codes [n, K] float8 with each row's scales [n, ceil(K / width)] -> [n, K] float32."""
    weight = codes.to(torch.float32)
    for column in range(scales.shape[1]):
        # block by block, so that no second matrix of scales is made
        part = weight[:, column * width : (column + 1) * width]
        part *= scales[:, column : column + 1].to(torch.float32)
    return weight


def read_block(values: object, where: str) -> tuple[int, int]:
    """`weight_block_size` of a config. Raises ModelFileError."""
    if (
        isinstance(values, list | tuple)
        and len(values) == 2
        and all(type(side) is int and 0 < side <= 1 << 16 for side in values)
    ):
        return values[0], values[1]
    raise ModelFileError(
        f"{where} has FP8 weights in blocks of {str(values)[:40]}, and only blocks such as "
        "[128, 128] are known. Choose another model."
    )
