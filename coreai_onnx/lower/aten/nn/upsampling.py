"""Torch's upsampling ops: one per filter and number of axes."""

from __future__ import annotations

from collections.abc import Sequence

from coreai_onnx.lower.aten.nn.resize import resize
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value
from coreai_onnx.lower.walk.registry import lowers


def _register(
    names: str, axes: Sequence[int], mode: str, *, exact: bool = False, antialias: bool = False
) -> None:
    """Register a filter over numbers of axes, each with two overloads.

    ``vec`` takes sizes or a list of factors, ``default`` both, with one parameter per axis.
    """
    filters = {"exact": exact, "antialias": antialias}

    @lowers(*(f"aten.{names.format(a)}.vec" for a in axes))
    def vec(
        op: OpBuilder,
        input: Value,
        output_size: Sequence[Dim] | None,
        scale_factors: Sequence[float] | None,
        *,
        align_corners: bool = False,
    ) -> Value:
        """The image in other sizes."""
        corners = {"align_corners": align_corners}
        return resize(op, input, output_size, scale_factors, mode, **filters, **corners)

    @lowers(*(f"aten.{names.format(a)}.default" for a in axes))
    def plain(
        op: OpBuilder,
        self: Value,
        output_size: Sequence[Dim],
        *,
        align_corners: bool = False,
        scales: float | None = None,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """The image in other sizes."""
        factors = [scales] if len(output_size) == 1 else [scales_d, scales_h, scales_w]
        # An op has the parameters of its own axes only, which are the last ones.
        factors = factors[-len(output_size) :]
        corners = {"align_corners": align_corners}
        return resize(op, self, output_size, factors, mode, **filters, **corners)


_register("upsample_nearest{}d", (1, 2, 3), "nearest")
_register("_upsample_nearest_exact{}d", (1, 2, 3), "nearest", exact=True)
_register("upsample_linear{}d", (1,), "linear")
_register("upsample_bilinear{}d", (2,), "linear")
_register("upsample_trilinear{}d", (3,), "linear")
_register("upsample_bicubic{}d", (2,), "cubic")
_register("_upsample_bilinear{}d_aa", (2,), "linear", antialias=True)
_register("_upsample_bicubic{}d_aa", (2,), "cubic", antialias=True)
