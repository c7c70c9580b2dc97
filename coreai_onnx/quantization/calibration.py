"""Runs a model on calibration data and collects the second moments of the inputs of products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import CoreaiError, QuantizationError
from coreai_onnx.quantization.products import Products, Root, origin
from coreai_onnx.runtime.session import Session
from coreai_onnx.stages import begin

Array = np.ndarray[Any, np.dtype[Any]]
Feed = Mapping[str, object] | Sequence[object]
"""The inputs of one call: by name, or by position."""
SWEEP_BYTES = 2 << 30
"""Bytes of second moments that are collected at a time; more take further runs over the data."""


class Probes:
    """A copy of a model that also returns the inputs of its products.

    Attributes:
        model: The copy.
        inputs: Name of an initializer to the names of the values that are multiplied by it.
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
        wanted, self.inputs = set(names), defaultdict[str, list[str]](list)
        for product in self._products.products:
            x = product.node.inputs[0]
            if product.is_lookup or x is None:
                continue
            for weight, value in self._traced(product.weight, x, product.root):
                known = self.inputs[weight.name or ""]
                if weight.name in wanted and value.name not in known and self._returned(value):
                    known.append(value.name or "")

    def _traced(
        self, weight: ir.Value, x: ir.Value, root: Root
    ) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Yield the initializer and the input of a product, for each way to call its function."""
        if not isinstance(root, ir.Function):
            yield weight, x
            return
        if self._products.owner(weight) is None:
            return
        for call, caller in self._products.calls[root.identifier()]:
            argument = call.inputs[list(root.inputs).index(weight)]
            value = self._passed(call, root, x)
            if argument is not None and value is not None:
                yield from self._traced(origin(argument), value, caller)

    def _passed(self, call: ir.Node, function: ir.Function, x: ir.Value) -> ir.Value | None:
        """Return the value outside of a call for a value in its function."""
        if self._products.owner(x) is function:
            return call.inputs[list(function.inputs).index(x)]
        if x.graph is not function.graph:
            return None  # in a subgraph
        index = self._outputs.get((function, x))
        if index is None:
            index = self._outputs[function, x] = len(function.outputs)
            function.outputs.append(x)
        while len(call.outputs) <= index:
            call.resize_outputs(len(call.outputs) + 1)
            call.outputs[-1].name = f"{call.outputs[0].name}.probe{index}"
        return call.outputs[index]

    def _returned(self, value: ir.Value) -> bool:
        """Make a value an output of the model; return whether that is possible."""
        graph = self.model.graph
        if value.is_graph_input() or value in graph.outputs:
            return True
        if value.graph is not graph:
            return False
        if value.type is None:
            value.type = ir.TensorType(ir.DataType.FLOAT)
        graph.outputs.append(value)
        return True


def second_moments(
    model: ir.Model, sizes: Mapping[str, int], feeds: Iterable[Feed]
) -> dict[str, Array]:
    """Return ``X^T X`` of the inputs of products, over all calls.

    Args:
        model: The model.
        sizes: Names of the initializers of the products, with their number of inputs.
        feeds: The inputs of each call, which are consecutive: states are carried on.

    Returns:
        Name of an initializer to float32 ``[K, K]``. Initializers whose products are inside of
        loops and branches are missing.

    Raises:
        QuantizationError: There is no data, it does not fit the model, or the model computes
            values that are not finite from it.
    """
    sweeps = list(_sweeps(sizes))
    given = feeds if len(sweeps) == 1 else list(feeds)
    found: dict[str, Array] = {}
    for number, names in enumerate(sweeps, 1):
        label = f" (part {number} of {len(sweeps)})" if len(sweeps) > 1 else ""
        found |= _sweep(Probes(model, names), given, label)
    return found


def _sweeps(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield names in parts whose moments fit into memory."""
    part: list[str] = []
    used = 0
    for name, size in sizes.items():
        needed = size * size * 4
        if part and used + needed > SWEEP_BYTES:
            yield part
            part, used = [], 0
        part.append(name)
        used += needed
    yield part


def _sweep(probes: Probes, feeds: Iterable[Feed], label: str) -> dict[str, Array]:
    readers: dict[tuple[str, ...], list[str]] = {}
    for name, values in probes.inputs.items():
        if values:  # products of one input share the moments
            readers.setdefault(tuple(values), []).append(name)
    session = Session(probes.model)
    moments: dict[tuple[str, ...], Array] = {}
    instead = ', or choose method="hqq", which needs none'
    for count, arrays in run_calls(session, feeds, label=label, instead=instead):
        for names, weights in readers.items():
            for name in names:
                rows = _rows(arrays[name], weights[0], count)
                product = rows.T @ rows
                moments[names] = moments[names] + product if names in moments else product
    return {weight: moments[names] for names, weights in readers.items() for weight in weights}


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
    number = 0
    for number, feed in enumerate(feeds, 1):
        begin(f"{what}{label}: call {number}")
        yield number, _run_call(session, feed, f"{what} call {number}")
    if not number:
        raise QuantizationError(
            f"there is no {what} data\n  give the inputs of a few calls that are typical of "
            f"the use of the model{instead}"
        )


def _run_call(session: Session, feed: Feed, what: str) -> dict[str, Array]:
    """Run one call; return its inputs and outputs by name."""
    try:
        if isinstance(feed, Mapping):
            outputs = session.run(**{str(name): value for name, value in feed.items()})
            arguments = dict(feed)
        elif isinstance(feed, list | tuple):
            outputs = session.run(*feed)
            arguments = dict(zip((info.name for info in session.inputs), feed, strict=False))
        else:
            raise QuantizationError(
                f"is a {type(feed).__name__}, not a mapping of names to arrays or a tuple of arrays"
            )
    except CoreaiError as error:
        raise QuantizationError(f"{what}: {error.args[0]}") from error
    return {**{name: np.asarray(value) for name, value in arguments.items()}, **outputs}


def _rows(value: Array, weight: str, number: int) -> Array:
    """Return the input of a product as float32 ``[rows, K]``."""
    rows = np.asarray(value).astype(np.float32)
    rows = rows.reshape(-1, rows.shape[-1])
    if not np.isfinite(rows).all():
        raise QuantizationError(
            f"calibration call {number}: the input of the product with {weight!r} is not finite\n"
            "  leave out data on which the model overflows"
        )
    return rows
