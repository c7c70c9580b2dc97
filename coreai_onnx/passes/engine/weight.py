"""The data of a constant in graph-surgeon: the ir tensor itself, read only on demand."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
from onnx_graphsurgeon.ir.tensor import LazyValues


class Weight(LazyValues):
    """Data of a ``gs.Constant`` that wraps the tensor object of the ``onnx_ir`` model.

    Import and export copy nothing; ``load`` returns a read-only view if the tensor supports one.

    Attributes:
        source: The tensor of the ``onnx_ir`` model.
        shape: Its shape, a list of int.
        dtype: Its numpy dtype (of ``ml_dtypes`` for bfloat16, float8, int4, ...).
        nbytes: Its size in the file.
    """

    def __init__(self, source: ir.TensorProtocol) -> None:
        """Wrap ``source`` without reading its data."""
        self.source = source
        self.shape = [int(dim) for dim in source.shape.numpy()]
        self.dtype = source.dtype.numpy()
        self._loaded: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes; for strings, the number of elements."""
        return int(
            self.source.size if self.source.dtype == ir.DataType.STRING else self.source.nbytes
        )

    @property
    def tensor(self) -> onnx.TensorProto:
        """The data as a proto; used only by graph-surgeon's own exporter."""
        return ir.to_proto(self.source)

    def load(self) -> np.ndarray:
        """Return the values as a read-only array."""
        if self._loaded is None:
            view = np.asarray(self.source.numpy()).view()
            view.flags.writeable = False
            self._loaded = view
        return self._loaded

    def holds(self, values: object) -> bool:
        """Whether ``values`` (of a constant) are still this weight, loaded or not."""
        return values is self or (self._loaded is not None and values is self._loaded)


def constant_from_tensor(name: str, source: ir.TensorProtocol) -> gs.Constant:
    """Return a ``gs.Constant`` that wraps ``source`` without reading it."""
    weight = Weight(source)
    constant = gs.Constant(name, weight)
    constant.weight = weight
    return constant


def holds_source(constant: gs.Constant) -> bool:
    """Whether a constant still has the data it was imported with."""
    weight: Weight | None = constant.__dict__.get("weight")
    return weight is not None and weight.holds(constant._values)  # noqa: SLF001 - as above


def tensor_from_constant(constant: gs.Constant) -> ir.TensorProtocol:
    """Return the ir tensor of a constant: the object it was imported from, if there is one."""
    values = constant._values  # noqa: SLF001 - reading .values would load the data
    if holds_source(constant):
        weight: Weight = constant.weight
        return weight.source
    if isinstance(values, Weight):
        return values.source
    if isinstance(values, LazyValues):  # created by a pass from a proto
        return ir.serde.deserialize_tensor(values.tensor)
    return ir.tensor(np.asarray(values), name=constant.name)
