"""Runs a model on calibration data and collects the second moments of the inputs of products."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import CoreaiError, QuantizationError
from coreai_onnx.messages import begin_stage
from coreai_onnx.quantization.weights.products import Products, Root, origin
from coreai_onnx.runtime.sessions.session import Session

Array = np.ndarray[Any, np.dtype[Any]]
Feed = Mapping[str, object] | Sequence[object]
"""The inputs of one call: by name, or by position."""
SWEEP_BYTES = 2 << 30
"""Bytes of second moments that are collected at a time; more take further runs over the data."""


class Probes:
    """A copy of a model that also returns the inputs of its products.

    Attributes:
        model: The copy.
        inputs: Name of an initializer to the names of the values that are multiplied by it, each
            with that of the matrices of its rows for experts.
    """

    def __init__(self, model: ir.Model, names: Iterable[str]) -> None:
        """Add the outputs.

        Args:
            model: The model, which stays as it is.
            names: Names of the initializers.
        """
        self.model = model.clone()
        self._products = Products(self.model)
        self._outputs: dict[tuple[ir.Function, ir.Value], int] = {}
        selected, self.inputs = set(names), defaultdict[str, list[tuple[str, ...]]](list)
        for product in self._products.products:
            if product.is_lookup or not product.inputs:
                continue
            for weight, values in self._traced(product.weight, product.inputs, product.root):
                probes = self.inputs[weight.name or ""]
                names_of = tuple(value.name or "" for value in values)
                if weight.name in selected and names_of not in probes and self._returned(values):
                    probes.append(names_of)

    def _traced(
        self, weight: ir.Value, inputs: tuple[ir.Value, ...], root: Root
    ) -> Iterator[tuple[ir.Value, tuple[ir.Value, ...]]]:
        """Yield the initializer and the inputs of a product for each call of its function."""
        if not isinstance(root, ir.Function):
            yield weight, inputs
            return
        # A constant inside of a function has no initializer whose moments could be asked for.
        if self._products.owner(weight) is None:
            return
        for call, caller in self._products.calls[root.identifier()]:
            argument = call.inputs[list(root.inputs).index(weight)]
            passed = [self._passed(call, root, x) for x in inputs]
            values = tuple(value for value in passed if value is not None)
            if argument is not None and len(values) == len(inputs):
                yield from self._traced(origin(argument), values, caller)

    def _passed(self, call: ir.Node, function: ir.Function, x: ir.Value) -> ir.Value | None:
        """Return the value in the caller for a value in the called function."""
        if self._products.owner(x) is function:
            return call.inputs[list(function.inputs).index(x)]
        if x.graph is not function.graph:
            return None  # in a subgraph
        # All calls of a function share the output that is added to it.
        index = self._outputs.get((function, x))
        if index is None:
            index = self._outputs[function, x] = len(function.outputs)
            function.outputs.append(x)
        # A call may leave out the last outputs of its function.
        while len(call.outputs) <= index:
            call.resize_outputs(len(call.outputs) + 1)
            call.outputs[-1].name = f"{call.outputs[0].name}.probe{index}"
        return call.outputs[index]

    def _returned(self, values: Sequence[ir.Value]) -> bool:
        """Make values outputs of the model, if possible, and return whether they are."""
        graph = self.model.graph
        if not all(value.graph is graph or value.is_graph_input() for value in values):
            return False
        for value, dtype in zip(values, (ir.DataType.FLOAT, ir.DataType.INT64), strict=False):
            if value.is_graph_input() or value in graph.outputs:
                continue
            # ONNX requires a type for outputs of the model; values that come from functions have
            # none.
            if value.type is None:
                value.type = ir.TensorType(dtype)
            graph.outputs.append(value)
        return True


def second_moments(
    model: ir.Model, shapes: Mapping[str, Sequence[int]], feeds: Iterable[Feed]
) -> dict[str, Array]:
    """Return ``X^T X`` of the inputs of products, over all calls.

    Args:
        model: The model.
        shapes: Names of the initializers of the products, with their outputs and inputs ``(N, K)``,
            or, for experts, ``(experts, N, K)``.
        feeds: The inputs of each call, which are consecutive: states are carried on.

    Returns:
        Name of an initializer to float32 ``[K, K]``, or ``[experts, K, K]``. Initializers whose
        products are inside of loops and branches are missing.

    Raises:
        QuantizationError: There is no data, it does not fit the model, or the model computes
            values that are not finite from it.
    """
    sweeps = list(_sweeps(shapes))
    # An iterator serves one run over the data.
    calls = feeds if len(sweeps) == 1 else list(feeds)
    moments: dict[str, Array] = {}
    for number, names in enumerate(sweeps, 1):
        label = f" (part {number} of {len(sweeps)})" if len(sweeps) > 1 else ""
        moments |= _sweep(Probes(model, list(names)), names, calls, label)
    return moments


def _sweeps(shapes: Mapping[str, Sequence[int]]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield the shapes of the moments by name, in parts that fit into memory."""
    part: dict[str, tuple[int, ...]] = {}
    used = 0
    for name, (*experts, _, inputs) in shapes.items():
        shape = (*experts, inputs, inputs)
        needed = math.prod(shape) * 4
        # A matrix that is larger than the limit by itself still gets a part of its own.
        if part and used + needed > SWEEP_BYTES:
            yield part
            part, used = {}, 0
        part[name] = shape
        used += needed
    yield part


def _sweep(
    probes: Probes, shapes: Mapping[str, tuple[int, ...]], feeds: Iterable[Feed], label: str
) -> dict[str, Array]:
    readers: dict[tuple[object, ...], list[str]] = {}
    for name, values in probes.inputs.items():
        if values:  # products of one input share the moments
            readers.setdefault((shapes[name], *values), []).append(name)
    session = Session(probes.model)
    moments = {key: np.zeros(shapes[names[0]], np.float32) for key, names in readers.items()}
    instead = ', or choose method="hqq", which needs none'
    for count, arrays in run_calls(session, feeds, label=label, instead=instead):
        for key, names in readers.items():
            for inputs in probes.inputs[names[0]]:
                what = f"the input of the product with {names[0]!r}"
                rows = finite_floats(arrays[inputs[0]], what, count)
                if len(inputs) == 1:
                    # The moments have one size for any number of calls; the rows themselves would
                    # not fit in memory.
                    flat = rows.reshape(-1, rows.shape[-1])
                    moments[key] += flat.T @ flat
                else:
                    _add_by_expert(moments[key], rows, arrays[inputs[1]])
    return {weight: moments[key] for key, names in readers.items() for weight in names}


def _add_by_expert(moments: Array, rows: Array, indices: Array) -> None:
    """Add the second moments of ``rows [..., M, K]`` to those of their experts."""
    batch = np.broadcast_shapes(rows.shape[:-2], indices.shape)
    spread = np.broadcast_to(rows, (*batch, *rows.shape[-2:])).reshape(-1, *rows.shape[-2:])
    chosen = np.broadcast_to(indices, batch).reshape(-1)
    # A call selects few of the experts; the moments of the others stay as they are.
    for expert in np.unique(chosen):
        group = spread[chosen == expert].reshape(-1, rows.shape[-1])
        moments[expert] += group.T @ group


def run_calls(
    session: Session,
    feeds: Iterable[Feed],
    *,
    what: str = "calibration",
    label: str = "",
    instead: str = "",
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Yield the number of each call, from 1, and its inputs and outputs by name.

    Args:
        session: The session; its states are carried on.
        feeds: The inputs of each call.
        what: What the data is for, in the progress and in errors.
        label: What the progress says after that.
        instead: What the error for missing data says a user may do instead.

    Raises:
        QuantizationError: There is no data, or it does not fit the model.
    """
    number, filled = 0, False
    for number, feed in enumerate(feeds, 1):
        begin_stage(f"{what}{label}: call {number}")
        arrays = _run_call(session, feed, f"{what} call {number}")
        # A call with no rows runs without an error, but shows nothing of the values.
        filled = filled or any(arrays[info.name].size for info in session.outputs)
        yield number, arrays
    if number and not filled:
        raise QuantizationError(
            f"the {what} data is empty: no output of the model has an element in any call\n"
            "  give calls with one row or more"
        )
    if not number:
        raise QuantizationError(
            f"there is no {what} data\n  give the inputs of a few calls that are typical of "
            f"the use of the model{instead}"
        )


def _run_call(session: Session, feed: Feed, what: str) -> dict[str, Array]:
    """Run one call; return its inputs and outputs by name."""
    try:
        if isinstance(feed, Mapping):
            arrays = session.arrays(**{str(name): value for name, value in feed.items()})
        elif isinstance(feed, list | tuple):
            arrays = session.arrays(*feed)
        else:
            raise QuantizationError(
                f"is a {type(feed).__name__}, not a mapping of names to arrays or a tuple of arrays"
            )
        return {**arrays, **session.run(**arrays)}
    except CoreaiError as error:
        raise QuantizationError(f"{what}: {error.args[0]}") from error


def finite_floats(value: Array, what: str, number: int) -> Array:
    """Return a value of a calibration call as float32.

    Raises:
        QuantizationError: An element is not finite.
    """
    floats = np.asarray(value).astype(np.float32)
    if not np.isfinite(floats).all():
        raise QuantizationError(
            f"calibration call {number}: {what} is not finite\n"
            "  leave out data on which the model overflows"
        )
    return floats
