"""The module of the composite ``gather_mm``."""

from __future__ import annotations

import torch
from torch import nn

from coreai_onnx.composites import torch_ops
from coreai_onnx.composites.declaration import computes
from coreai_onnx.composites.gather_mm import gather_mm, taken_shape
from coreai_onnx.composites.modules import Version


class GatherMM(nn.Module):
    """Gathered matrix products: an index selects the matrix.

    Args:
        num_batch_axes: Number of leading axes before the axis that the indices select from.
        transpose_rhs: Whether the matrices of ``rhs`` are ``[N, K]``, as in linear layers.
    """

    def __init__(
        self,
        num_batch_axes: int = 0,
        transpose_rhs: bool = False,  # noqa: FBT001, FBT002 - coreai-torch's positional argument
    ) -> None:
        """Store the attributes of the composite ``gather_mm``."""
        super().__init__()
        self.num_batch_axes = num_batch_axes
        self.transpose_rhs = transpose_rhs
        self.version = Version.v1

    @computes("gather_mm")
    def forward(
        self,
        lhs: torch.Tensor,
        rhs: torch.Tensor,
        lhs_indices: torch.Tensor | None = None,
        rhs_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Multiply; shapes as in :mod:`coreai_onnx.composites.gather_mm`.

        In an exported program this is one op, which becomes the composite.

        Raises:
            ValueError: If ranks or sizes do not match, indices are not integers, or an index whose
                value is known is out of range.
        """
        axis = self.num_batch_axes
        _check_indices("lhs", lhs, lhs_indices, axis)
        _check_indices("rhs", rhs, rhs_indices, axis)
        left, right = taken_shape(lhs, lhs_indices, axis), taken_shape(rhs, rhs_indices, axis)
        for name, shape in (("lhs", left), ("rhs", right)):
            message = f"{name} must have rank 2 at least once its indices are taken, has {shape}"
            _check(len(shape) >= 2, message)
        inner = right[-1 if self.transpose_rhs else -2]
        message = f"lhs {left} has {left[-1]} columns, rhs {right} wants {inner}"
        _check(left[-1] == inner, message)
        if torch.compiler.is_exporting():
            indices = [_as_index(i) for i in (lhs_indices, rhs_indices)]
            product: torch.Tensor = torch_ops.gather_mm(
                lhs, rhs, *indices, axis, self.transpose_rhs
            )
            return product
        return gather_mm(
            lhs,
            rhs,
            lhs_indices,
            rhs_indices,
            num_batch_axes=axis,
            transpose_rhs=int(self.transpose_rhs),
        )


def _check_indices(name: str, x: torch.Tensor, indices: torch.Tensor | None, axis: int) -> None:
    """Check the dtype of indices and, if their values can be read, their range."""
    if indices is None:
        return
    whole = not indices.dtype.is_floating_point and indices.dtype != torch.bool
    _check(whole, f"{name}_indices must be integers, are {indices.dtype}")
    message = (
        f"{name} {tuple(x.shape)} has no axis {axis}, from which num_batch_axes={axis} chooses"
    )
    _check(0 <= axis < x.ndim, message)
    readable = type(indices) is torch.Tensor and indices.device.type != "meta"
    if readable and not torch.compiler.is_compiling() and indices.numel():
        wide = indices.to(torch.int64)
        low, high = int(wide.min()), int(wide.max())
        size = x.shape[axis]
        message = (
            f"{name}_indices reach from {low} to {high}, axis {axis} of {name} has size {size}"
        )
        _check(low >= 0 and high < size, message)


def _as_index(indices: torch.Tensor | None) -> torch.Tensor | None:
    """Return indices in a dtype that the composite accepts."""
    if indices is None or indices.dtype in (torch.int32, torch.int64):
        return indices
    return indices.to(torch.int64)


def _check(condition: bool | torch.SymBool, message: str) -> None:  # noqa: FBT001 - one condition
    if not condition:
        raise ValueError(f"gather_mm: {message}")
