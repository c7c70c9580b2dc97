"""Fuses convolutions: gather_mm if their windows are rows of a matrix, and convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    cast_to,
    composite,
    dtype_of,
    input_of,
    is_standard,
    maker,
    same_known_shape,
    shape_of,
)
from coreai_onnx.passes.engine.narrow import NARROW, Computation, computation, in_dtype
from coreai_onnx.passes.engine.why import Why

# Measured above the bound only: the convolutions of Whisper in bfloat16 took 2.7 ms with their
# casts and take 0.6 as gather_mm (docs/internals/performance_log.md).
_FLOAT32 = np.dtype(np.float32)
_FEW_CHANNELS = 16
"""Below this number of channels, the windows of a sequence are too many short copies."""


@dataclass(frozen=True)
class _Windows:
    """The sizes of a convolution; all but the batch are known."""

    batch: Dim
    channels: int
    size: Sequence[int]
    filters: int
    kernel: Sequence[int]
    strides: Sequence[int]
    pads: Sequence[int]

    @property
    def steps(self) -> list[int]:
        """The size of the result."""
        rank = len(self.size)
        ends = zip(self.size, self.kernel, self.strides, strict=True)
        return [
            (size + self.pads[i] + self.pads[rank + i] - kernel) // stride + 1
            for i, (size, kernel, stride) in enumerate(ends)
        ]

    @property
    def are_patches(self) -> bool:
        """Whether the windows cover the input without overlap."""
        whole = all(n % k == 0 for n, k in zip(self.size, self.kernel, strict=True))
        return whole and [*self.kernel] == [*self.strides] and not any(self.pads)

    @property
    def are_slices(self) -> bool:
        """Whether the windows are rows of slices of a sequence."""
        return len(self.size) == 1 and self.channels >= _FEW_CHANNELS and min(self.steps) > 0


@makes_functions
@rewrites("Conv", "Cast")
def fuse_narrow_convolutions(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Conv of bfloat16 or float16 with windows that are patches, or of a sequence → gather_mm.

    Conv(x:bf16[b, c, 16·h, 16·w], w:bf16[n, c, 16, 16], strides = [16, 16]) → y
    becomes     gather_mm(patches of x [b, h·w, c·16·16], w [n, c·16·16]) ─Transpose, Reshape→ y

    onnxruntime has no Conv of these dtypes on x86. The windows of a sequence are the slices of the
    padded sequence that begin at each position of the kernel. The product is rounded before the
    bias is added.
    """
    return _fuse(edit, node, why, bodies, NARROW)


@makes_functions
@rewrites("Conv")
def fuse_float32_convolutions(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Conv of float32 over images or a sequence → convolution; over volumes, patches → gather_mm.

    Conv(x[b, c, h, w], w[n, c, 3, 3], pads = [1, 1, 1, 1]) → y
    becomes     convolution(x, w, padding = [1, 1, 1, 1]) → y

    The kernels sum a window in one order on every processor, onnxruntime in its own. A sequence is
    an image of one row.
    """
    rank = len(shape_of(node.inputs[1]) or ())
    if rank not in (3, 4) or dtype_of(node.inputs[0]) != _FLOAT32:
        return _fuse(edit, node, why, bodies, (_FLOAT32,))
    if attribute_of(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return why("the padding follows from the size", node)
    name = "convolution" if len(node.inputs) > 2 else "convolution.no_bias"
    op_type = bodies.provide_composite(name, _FLOAT32)
    if op_type is None:
        return why("the model's convolution has another body", node)
    axes, one = rank - 2, [1] * (4 - rank)
    pads = attribute_of(node, "pads", [0] * 2 * axes)
    attributes = {
        "domain": STANDARD_DOMAIN,
        "stride": [*one, *attribute_of(node, "strides", [1] * axes)],
        "padding": [0] * len(one) + pads[:axes] + [0] * len(one) + pads[axes:],
        "dilation": [*one, *attribute_of(node, "dilations", [1] * axes)],
        "groups": attribute_of(node, "group", 1),
        "version": 1,
    }
    if rank == 4:
        edit.become(node, op_type, [*node.inputs], **attributes)
        return True
    row = edit.constant(f"{node.name}_row", np.array([2], np.int64))

    def as_image(tensor: gs.Tensor) -> gs.Tensor:
        dims = _with_row(tensor)
        if isinstance(tensor, gs.Constant) and dims is not None:
            return edit.lazy(f"{tensor.name}_image", lambda x: x[:, :, None], [tensor], dims)
        return edit.add("Unsqueeze", node, [tensor, row], _FLOAT32, dims)

    operands = [*map(as_image, node.inputs[:2]), *node.inputs[2:]]
    shape = _with_row(node.outputs[0])
    image = edit.add(op_type, node, operands, _FLOAT32, shape, **attributes)
    edit.become(node, "Squeeze", [image, row])
    return True


@makes_functions
@rewrites("Add", "Relu")
def fuse_residuals(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Add of a convolution and another result of its shape, and Relu → a convolution.

    convolution(x, w, b) → c, Add(c, r) → s, Relu(s) → y
    becomes     convolution(x, w, b, r, activation = relu) → y

    The kernel adds and activates what it has just computed, in the order of the nodes.
    """
    for result, *residual in (node.inputs, node.inputs[::-1])[: len(node.inputs)]:
        conv = maker(result)
        if conv is None or composite(conv, "convolution") is None or not edit.holds(conv):
            continue
        if attribute_of(conv, "activation", "none") != "none":
            continue
        if edit.only_reader(result) is None:
            why("something else reads the convolution", node)
        elif residual and input_of(conv, 3) is not None:
            why("the convolution has a residual", node)
        elif residual and not same_known_shape(result, residual[0]):
            why("the terms are not known to have the same shape", node)
        else:
            return _extend(edit, node, why, bodies, conv, residual)
    return False


def _extend(
    edit: Edit, node: gs.Node, why: Why, bodies: Bodies, conv: gs.Node, residual: list[gs.Tensor]
) -> bool:
    """Make a node compute a convolution with its residual, or else with relu."""
    bias = input_of(conv, 2)
    operands = [*conv.inputs[:2], gs.Variable.empty() if bias is None else bias]
    operands += residual or conv.inputs[3:]
    activation = "none" if residual else "relu"
    words = {"no_bias": bias is None, "residual": len(operands) > 3, "relu": not residual}
    suffix = "_".join(word for word, has in words.items() if has)
    op_type = bodies.provide_composite(f"convolution.{suffix}", dtype_of(node.outputs[0]))
    if op_type is None:
        return why("the model's convolution has another body", node)
    attributes = dict(conv.attrs) | {"domain": STANDARD_DOMAIN, "activation": activation}
    edit.become(node, op_type, operands, **attributes)
    return True


def _with_row(sequence: gs.Tensor) -> list[Any] | None:
    shape = shape_of(sequence)
    return None if shape is None else [*shape[:2], 1, *shape[2:]]


def _fuse(
    edit: Edit, node: gs.Node, why: Why, bodies: Bodies, dtypes: Sequence[np.dtype[Any]]
) -> bool:
    conv = computation(node)
    dtype = dtype_of(conv.inputs[0]) if is_standard(conv, "Conv") else None
    if dtype is None or dtype not in dtypes:
        return False
    windows = _windows(conv)
    # Then both the convolution and the product would be computed.
    if conv.last.op == "Cast" and len(conv.last.inputs[0].outputs) > 1:
        return why("the result is read in float32", node)
    if windows is None:
        return why("the sizes are not known, or the convolution is grouped or dilated", node)
    if not isinstance(conv.inputs[1], gs.Constant) or _readers(conv.inputs[1]) > 1:
        return why("the weight must be a constant that nothing else reads", node)
    if not windows.are_patches and not windows.are_slices:
        return why(
            "the windows are neither patches nor those of a sequence with many channels", node
        )
    weight = in_dtype(edit, conv.inputs[1], dtype)
    if weight is None:
        return why("the weight has more bits than the input", node)
    # A model's own calls with indices may have the plain name already.
    names = ("gather_mm.transposed", "gather_mm.rows_transposed")
    op_type = bodies.provide_composite(names[0], dtype, *names)
    if op_type is None:
        return why("the model's gather_mm has another body", node)
    _Writer(edit, node, windows, dtype).write(op_type, [conv.inputs[0], weight, *conv.inputs[2:]])
    return True


def _readers(weight: gs.Constant) -> int:
    """Return how many nodes read a weight, widened or not."""
    casts = [node.outputs[0] for node in weight.outputs if cast_to(node) is not None]
    return len(weight.outputs) - len(casts) + sum(len(tensor.outputs) for tensor in casts)


def _windows(conv: Computation) -> _Windows | None:
    shape, weight = shape_of(conv.inputs[0]), shape_of(conv.inputs[1])
    if shape is None or weight is None or len(shape) < 3:
        return None
    rank = len(shape) - 2
    plain = {"auto_pad": "NOTSET", "group": 1, "dilations": [1] * rank}
    if any(attribute_of(conv, name, value) != value for name, value in plain.items()):
        return None
    strides = attribute_of(conv, "strides", [1] * rank)
    pads = attribute_of(conv, "pads", [0] * 2 * rank)
    sizes = [dim for dim in (*shape[1:], *weight) if isinstance(dim, int)]
    # All but the batch, which the op and the reshapes leave open.
    if len(sizes) != 2 * rank + 3:
        return None
    size, kernel = sizes[1 : 1 + rank], sizes[3 + rank :]
    return _Windows(shape[0], sizes[0], size, sizes[1 + rank], kernel, strides, pads)


class _Writer:
    """Writes a convolution as a product, before the node that gives its result."""

    def __init__(self, edit: Edit, node: gs.Node, windows: _Windows, dtype: np.dtype[Any]) -> None:
        self._edit, self._node, self._windows, self._dtype = edit, node, windows, dtype

    def write(self, op_type: str, operands: Sequence[gs.Tensor]) -> None:
        windows, places = self._windows, math.prod(self._windows.steps)
        lead = [windows.batch, places]
        rows = self._patches(operands[0]) if windows.are_patches else self._slices(operands[0])
        attributes = {
            "domain": STANDARD_DOMAIN,
            "num_batch_axes": 0,
            "transpose_rhs": 1,
            "version": 1,
        }
        factors = [rows, self._matrix(operands[1])]
        product = self._made(op_type, factors, [*lead, windows.filters], **attributes)
        if len(operands) > 2:
            product = self._biased(product, operands[2])
        if len(windows.size) == 1:
            self._edit.become(self._node, "Transpose", [product], perm=[0, 2, 1])
            return
        # Images and volumes: the places are split into their axes again.
        turned = [windows.batch, windows.filters, places]
        columns = self._made("Transpose", [product], turned, perm=[0, 2, 1])
        shape = self._ints([0, windows.filters, *windows.steps])
        self._edit.become(self._node, "Reshape", [columns, shape])

    def _matrix(self, weight: gs.Tensor) -> gs.Constant:
        """Return the weight with a row for each filter, in the order of the windows."""
        windows, patches = self._windows, self._windows.are_patches
        assert isinstance(weight, gs.Constant)

        def rows(values: np.ndarray) -> np.ndarray:
            # A slice has all channels of one position side by side; ONNX's weight has all positions
            # of one channel.
            ordered = values if patches else values.transpose(0, 2, 1)
            return ordered.reshape(len(values), -1)

        width = windows.channels * math.prod(windows.kernel)
        return self._edit.lazy(f"{weight.name}_rows", rows, [weight], [windows.filters, width])

    def _patches(self, x: gs.Tensor) -> gs.Tensor:
        """Return ``[batch, places, channels · kernel]`` of windows that do not overlap."""
        windows, rank = self._windows, len(self._windows.size)
        inner = [n for pair in zip(windows.steps, windows.kernel, strict=True) for n in pair]
        apart_size = [windows.channels, *inner]
        shape = [windows.batch, *apart_size]
        apart = self._made("Reshape", [x, self._ints([0, *apart_size])], shape)
        # Places first, then channels and the positions in a window, in the order of ONNX's weight.
        perm = [0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2)]
        turned = self._made("Transpose", [apart], [shape[i] for i in perm], perm=perm)
        flat = [math.prod(windows.steps), windows.channels * math.prod(windows.kernel)]
        return self._made("Reshape", [turned, self._ints([0, *flat])], [windows.batch, *flat])

    def _slices(self, x: gs.Tensor) -> gs.Tensor:
        """Return ``[batch, steps, kernel · channels]`` of the windows of a sequence."""
        windows, (stride,), (steps,) = self._windows, self._windows.strides, self._windows.steps
        turned = [windows.batch, windows.size[0], windows.channels]
        padded = self._padded(self._made("Transpose", [x], turned, perm=[0, 2, 1]))
        part, axis = [windows.batch, steps, windows.channels], self._ints([1])
        slices = [
            self._made(
                "Slice",
                [padded, self._ints([at]), self._ints([at + (steps - 1) * stride + 1]), axis]
                + ([self._ints([stride])] if stride > 1 else []),
                part,
            )
            for at in range(windows.kernel[0])
        ]
        width = windows.kernel[0] * windows.channels
        return self._made("Concat", slices, [windows.batch, steps, width], axis=2)

    def _padded(self, x: gs.Tensor) -> gs.Tensor:
        """Return a sequence with zeros before and after it; onnxruntime has no Pad of 16 bits."""
        windows = self._windows
        parts = [self._zeros(x, windows.pads[0]), x, self._zeros(x, windows.pads[1])]
        present = [part for part in parts if part is not None]
        length = windows.size[0] + sum(windows.pads)
        shape = [windows.batch, length, windows.channels]
        return x if len(present) == 1 else self._made("Concat", present, shape, axis=1)

    def _zeros(self, x: gs.Tensor, length: int) -> gs.Tensor | None:
        if length == 0:
            return None
        batch = self._edit.add("Shape", self._node, [x], start=0, end=1)
        rest = self._ints([length, self._windows.channels])
        dims = self._edit.add("Concat", self._node, [batch, rest], axis=0)
        shape = [self._windows.batch, length, self._windows.channels]
        zero = gs.Constant("zero", np.zeros(1, self._dtype))
        return self._made("ConstantOfShape", [dims], shape, value=zero)

    def _biased(self, product: gs.Tensor, bias: gs.Tensor) -> gs.Tensor:
        """Return the sum with a bias, computed in float32."""
        if self._dtype == _FLOAT32:
            return self._made("Add", [product, bias], product.shape)
        # onnxruntime has no Add of 16 bits on x86; fuse_biases recognizes the casts and makes
        # add_bias of them.
        wide = self._wide(product)
        row = bias if dtype_of(bias) == np.float32 else self._wide(bias)
        total = self._made("Add", [wide, row], product.shape)
        total.dtype = wide.dtype
        return self._made(
            "Cast", [total], product.shape, to=int(ir.DataType.from_numpy(self._dtype))
        )

    def _wide(self, tensor: gs.Tensor) -> gs.Tensor:
        wide = self._made("Cast", [tensor], tensor.shape, to=int(ir.DataType.FLOAT))
        wide.dtype = np.dtype(np.float32)
        return wide

    def _ints(self, values: Sequence[int]) -> gs.Constant:
        return self._edit.constant("window", np.array(values, np.int64))

    def _made(
        self, op: str, inputs: Sequence[gs.Tensor], shape: Sequence[Dim], **attributes: Any
    ) -> gs.Tensor:
        """Return the result of a new node, in the dtype of the convolution."""
        return self._edit.add(op, self._node, inputs, self._dtype, list(shape), **attributes)
