"""The ranges of values in a model on calibration data."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.calibration import Feed, run_calls
from coreai_onnx.runtime.session import Session

Range = tuple[float, float]
"""The smallest and the largest value."""


def value_ranges(model: ir.Model, names: Iterable[str], feeds: Iterable[Feed]) -> dict[str, Range]:
    """Return the range of values of the main graph, over all calls.

    Args:
        model: The model.
        names: Names of values of the main graph, also of its inputs.
        feeds: The inputs of each call, which are consecutive: states are carried on.

    Returns:
        Name to range; a value that is empty in all calls is missing.

    Raises:
        QuantizationError: There is no data, it does not fit the model, or a value is not finite.
    """
    probed, wanted = model.clone(), dict.fromkeys(names)
    graph = probed.graph
    for node in graph:
        for value in node.outputs:
            if value.name in wanted and value not in graph.outputs:
                graph.outputs.append(value)
    session = Session(probed)
    found: dict[str, Range] = {}
    for count, arrays in run_calls(session, feeds):
        for name in wanted:
            values = np.asarray(arrays[name]).astype(np.float32)
            if not np.isfinite(values).all():
                raise QuantizationError(
                    f"calibration call {count}: the value {name!r} is not finite\n"
                    "  leave out data on which the model overflows"
                )
            if values.size:
                low, high = found.get(name, (np.inf, -np.inf))
                found[name] = min(low, float(values.min())), max(high, float(values.max()))
    return found
