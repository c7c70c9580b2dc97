"""The module of the composite ``gather_mm``."""

from __future__ import annotations

import torch
from torch import nn

from coreai_onnx.composite_ops import torch_ops
from coreai_onnx.composite_ops.gather_mm import gather_mm, taken_shape
from coreai_onnx.composite_ops.modules import Version


class GatherMM(nn.Module):
    """Matrix products in which an index chooses the matrix.

    Args:
        num_batch_axes: How many leading axes stand before the axis that indices choose from.
        transpose_rhs: Whether the matrices of ``rhs`` are ``[N, K]``, as linear layers keep them.
    """

    def __init__(
        self,
        num_batch_axes: int = 0,
        transpose_rhs: bool = False,  # noqa: FBT001, FBT002 - beside the peer's positional argument
    ) -> None:
        """Keep the attributes of the composite ``gather_mm``."""
        super().__init__()
        self.num_batch_axes = num_batch_axes
        self.transpose_rhs = transpose_rhs
        self.version = Version.v1

    def forward(
        self,
        lhs: torch.Tensor,
        rhs: torch.Tensor,
        lhs_indices: torch.Tensor | None = None,
        rhs_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Multiply; shapes as in :mod:`coreai_onnx.composite_ops.gather_mm`.

        While a program is exported this is one op, which becomes the composite.

        Raises:
            ValueError: If ranks or sizes do not fit, indices are no integers, or one of them is
                outside its axis where their values are known.
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
    """Check the type of indices and, where their values are there to be read, their range."""
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
    """Return indices in a dtype that the composite takes."""
    if indices is None or indices.dtype in (torch.int32, torch.int64):
        return indices
    return indices.to(torch.int64)


def _check(condition: bool | torch.SymBool, message: str) -> None:  # noqa: FBT001 - one condition
    if not condition:
        raise ValueError(f"gather_mm: {message}")
