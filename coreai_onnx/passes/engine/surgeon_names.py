"""Names of graph-surgeon that it does not document; the engine imports them from here."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon

from coreai_onnx.model.dependencies import imported_from, require

with imported_from("onnx_graphsurgeon"):
    from onnx_graphsurgeon.ir.tensor import LazyValues
    from onnx_graphsurgeon.util.misc import convert_from_onnx_attr_type, convert_to_onnx_attr_type

require(
    "onnx_graphsurgeon",
    [
        (onnx_graphsurgeon.Constant("", np.zeros(1)), ("_values",)),
        (LazyValues, ("load",)),
        (onnx_graphsurgeon.Node, ("AttributeRef",)),
    ],
)


def stored_values(constant: onnx_graphsurgeon.Constant) -> np.ndarray | LazyValues:
    """Return the values as they are stored; reading ``values`` would load the data."""
    values: np.ndarray | LazyValues = constant._values  # noqa: SLF001 - ``values`` loads them
    return values
