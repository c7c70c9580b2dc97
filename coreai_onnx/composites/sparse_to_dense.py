"""Sparse weights: the values that are not zero, and a bit for each element."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.composites.blocks import check_stream, read_stream
from coreai_onnx.composites.checks import Attributes, Dims
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def sparse_to_dense(
    nonzero: torch.Tensor, mask: torch.Tensor, *, shape: Sequence[int] = ()
) -> torch.Tensor:
    """Return the weight that has the given values where bits are set, and zeros elsewhere.

    Args:
        nonzero: ``[count]``, floating: the values in C order, one for each bit that is set.
        mask: uint8: a bit for each element of ``shape``, in C order, as a little-endian bit stream,
            see :func:`coreai_onnx.composites.blocks.streamed`.
        shape: Shape of the weight.

    Returns:
        ``shape``, in the dtype of ``nonzero``.
    """
    present = read_stream(mask, 1, shape)
    # position 0 is the zero of the elements that are absent
    positions = present.flatten().cumsum(0).reshape(present.shape) * present
    return torch.cat([nonzero.new_zeros(1), nonzero])[positions]


def _check(dims: Dims, attributes: Attributes) -> str:
    return check_stream(dims, {**attributes, "bits": 1}, "mask")


COMPOSITE = Composite(
    name="sparse_to_dense",
    inputs=(Input("nonzero", dims="C"), Input("mask", dtype="uint8")),
    outputs=("output",),
    output_dims=("?",),
    attributes=(Attribute("shape", "ints", ()),),
    reference=sparse_to_dense,
    formula="the next value of nonzero where a bit of mask is set, 0 elsewhere",
    check=_check,
)
