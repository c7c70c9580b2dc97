"""Torch's upsampling ops: one per filter and number of axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coreai_onnx.lower.aten.nn.resize import resize
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import Dim, Value
from coreai_onnx.lower.walk.registry import lowers

Sizes = Sequence[Dim] | None
Scales = Sequence[float] | None


# ---------------------------------------------------------------------- nearest
@lowers("aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec")
def nearest(op: OpBuilder, input: Value, output_size: Sizes, scale_factors: Scales) -> Value:
    """The pixel at ⌊i · old / new⌋."""
    return resize(op, input, output_size, scale_factors, "nearest")


@lowers(
    "aten._upsample_nearest_exact1d.vec",
    "aten._upsample_nearest_exact2d.vec",
    "aten._upsample_nearest_exact3d.vec",
)
def nearest_exact(op: OpBuilder, input: Value, output_size: Sizes, scale_factors: Scales) -> Value:
    """The pixel at ⌊(i + ½) · old / new⌋."""
    return resize(op, input, output_size, scale_factors, "nearest", exact=True)


def _register_nearest(name: str, *, exact: bool) -> None:
    """Register the overloads that have one scale parameter per axis."""

    @lowers(f"aten.{name}1d.default")
    def nearest1d(
        op: OpBuilder, self: Value, output_size: Sequence[Dim], scales: float | None = None
    ) -> Value:
        """The nearest element."""
        return resize(op, self, output_size, [scales], "nearest", exact=exact)

    @lowers(f"aten.{name}2d.default")
    def nearest2d(
        op: OpBuilder,
        self: Value,
        output_size: Sequence[Dim],
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """The nearest pixel."""
        return resize(op, self, output_size, [scales_h, scales_w], "nearest", exact=exact)

    @lowers(f"aten.{name}3d.default")
    def nearest3d(
        op: OpBuilder,
        self: Value,
        output_size: Sequence[Dim],
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """The nearest voxel."""
        scales = [scales_d, scales_h, scales_w]
        return resize(op, self, output_size, scales, "nearest", exact=exact)


_register_nearest("upsample_nearest", exact=False)
_register_nearest("_upsample_nearest_exact", exact=True)


# ---------------------------------------------------------------------- linear and cubic
def _register_vec(name: str, mode: str, *, antialias: bool = False) -> Callable[..., Value]:
    """Register an overload that takes sizes or scale factors."""

    @lowers(f"aten.{name}.vec")
    def vec(
        op: OpBuilder,
        input: Value,
        output_size: Sizes,
        *,
        align_corners: bool,
        scale_factors: Scales,
    ) -> Value:
        """Weighted sums of neighboring pixels."""
        return resize(
            op,
            input,
            output_size,
            scale_factors,
            mode,
            align_corners=align_corners,
            antialias=antialias,
        )

    return vec


for _name, _mode, _antialias in (
    ("upsample_linear1d", "linear", False),
    ("upsample_bilinear2d", "linear", False),
    ("upsample_trilinear3d", "linear", False),
    ("upsample_bicubic2d", "cubic", False),
    ("_upsample_bilinear2d_aa", "linear", True),
    ("_upsample_bicubic2d_aa", "cubic", True),
):
    _register_vec(_name, _mode, antialias=_antialias)


@lowers("aten.upsample_linear1d.default")
def linear1d(
    op: OpBuilder,
    self: Value,
    output_size: Sequence[Dim],
    *,
    align_corners: bool,
    scales: float | None = None,
) -> Value:
    """Weighted sums of two neighbors."""
    return resize(op, self, output_size, [scales], "linear", align_corners=align_corners)


@lowers("aten.upsample_trilinear3d.default")
def trilinear3d(
    op: OpBuilder,
    self: Value,
    output_size: Sequence[Dim],
    *,
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """Weighted sums of eight neighbors."""
    scales = [scales_d, scales_h, scales_w]
    return resize(op, self, output_size, scales, "linear", align_corners=align_corners)


def _register_plane(name: str, mode: str, *, antialias: bool = False) -> None:
    """Register an overload for images that has one scale parameter per axis."""

    @lowers(f"aten.{name}.default")
    def plane(
        op: OpBuilder,
        self: Value,
        output_size: Sequence[Dim],
        *,
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """Weighted sums of neighboring pixels."""
        return resize(
            op,
            self,
            output_size,
            [scales_h, scales_w],
            mode,
            align_corners=align_corners,
            antialias=antialias,
        )


_register_plane("upsample_bilinear2d", "linear")
_register_plane("upsample_bicubic2d", "cubic")
_register_plane("_upsample_bilinear2d_aa", "linear", antialias=True)
_register_plane("_upsample_bicubic2d_aa", "cubic", antialias=True)
