"""Checks a compiled kernel against the reference of its composite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from coreai_onnx.composites import Composite
from coreai_onnx.debugging.difference import Tolerance, Tolerances, tolerance_of
from coreai_onnx.delegation.user_kernels.examples import ExampleCall, Shapes, Values, example_calls
from coreai_onnx.errors import KernelError, LoweringError
from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.export.recognize.numeric_probe import RAISES, first_line
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import ir_dtype, set_dims
from coreai_onnx.lower.walk.program import LoweredProgram
from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.model.interface import type_text
from coreai_onnx.runtime.tensors.outputs import Array
from coreai_onnx.runtime.trial import How, Trial, TrialRun, run_trial

_OPSET = 23
_HOW: Mapping[How, str] = {
    "guarded": "",
    "once": "",
    "again": ", called again after other calls",
    "concurrent": ", called by several threads",
}
_CONDITION_FACTOR = 4.0
"""By how much more than the reference in the same dtype a kernel may err for values of very
different magnitudes: the largest error of many sums varies with their order."""


@dataclass(frozen=True)
class _Case:
    """A call with the results of the reference.

    Attributes:
        call: The call.
        dtype: The composite's dtype.
        expected: The results of the reference.
        ideal: Its results for inputs in float64; ``expected`` where it does not accept them.
    """

    call: ExampleCall
    dtype: torch.dtype
    expected: Sequence[torch.Tensor]
    ideal: Sequence[torch.Tensor]

    def __str__(self) -> str:
        """Return dtype, shapes and attributes."""
        inputs = [
            type_text(str(x.dtype).removeprefix("torch."), tuple(x.shape))
            for x in self.call.inputs.values()
        ]
        named = [f"{name} {text}" for name, text in zip(self.call.inputs, inputs, strict=True)]
        named += [f"{name}={value!r}" for name, value in self.call.attributes.items()]
        return f"{', '.join(named)} ({self.call.label})"


def check_kernel(
    composite: Composite,
    library: Path,
    *,
    attributes: Sequence[Mapping[str, Any]],
    shapes: Sequence[Shapes],
    tolerances: Tolerances,
    timeout: float,
) -> int:
    """Compare a kernel with the reference, over all declared dtypes and generated calls.

    An element is correct if it is within the tolerance of the reference in the same dtype, or of
    the reference in float64.

    Args:
        composite: The declaration.
        library: The compiled kernel.
        attributes: Attributes to try instead of values near the defaults.
        shapes: Shapes to try besides the generated ones.
        tolerances: Tolerances by dtype; None for the defaults of ``torch.testing``.
        timeout: Seconds that all runs may take.

    Returns:
        The number of calls that were compared.

    Raises:
        KernelError: If a result differs, the kernel fails or crashes, or no generated call is valid
            for the composite. The message names the dtype, the shapes and the first wrong element.
    """
    cases: list[_Case] = []
    models = _Models(composite)
    runs: list[TrialRun] = []
    for name in composite.dtypes:
        valid = list(_valid_cases(composite, getattr(torch, name), attributes, shapes, models))
        cases += [case for case, _ in valid]
        runs += [run for _, run in valid]
    # In a process of its own: a kernel that crashes must not end the caller's.
    result = run_trial(Trial(library, models.protos, runs), timeout=timeout)
    for output in result.outputs:
        case = cases[output.run]
        wrong = _difference(composite, case, output.arrays, tolerances)
        if wrong:
            raise KernelError(
                f"the kernel of {composite.name} differs from its reference\n"
                f"  for {case}{_HOW[output.how]}\n  {wrong}"
            )
    # After the results: a wrong result that precedes a crash says more about the mistake.
    if result.failure:
        failed = result.failed
        where = f"\n  for {cases[failed.runs[0]]}{_HOW[failed.how]}" if failed else ""
        raise KernelError(f"the kernel of {composite.name} fails{where}\n  {result.failure}")
    return len(cases)


def _valid_cases(
    composite: Composite,
    dtype: torch.dtype,
    attributes: Sequence[Mapping[str, Any]],
    shapes: Sequence[Shapes],
    models: _Models,
) -> Iterator[tuple[_Case, TrialRun]]:
    """Yield the calls that the composite accepts, with the runs of a kernel.

    Raises:
        KernelError: If the composite accepts none of the calls.
    """
    refusal, count = "", 0
    for call in example_calls(composite, dtype, attributes, shapes):
        try:
            case = _case(composite, call, dtype)
            model = models.of(case)
        # Generated sizes may be invalid for a composite: only its own check and reference know.
        except (LoweringError, *RAISES) as error:
            refusal = refusal or first_line(error)
            continue
        count += 1
        inputs = tuple(_array(x) for x in models.passed(model, call))
        expected = [_array(x) for x in case.expected]
        yield case, TrialRun(model, inputs, tuple((x.shape, x.dtype) for x in expected))
    if not count:
        raise KernelError(
            f"no generated call of {composite.name} is valid in {dtype}: {refusal}\n"
            "  give shapes= and attributes= that the composite accepts, or correct its declaration"
        )


def _case(composite: Composite, call: ExampleCall, dtype: torch.dtype) -> _Case:
    inputs = [call.inputs.get(declared.name) for declared in composite.inputs]
    # In float64 the order of sums hardly matters, so that a kernel may sum in another one.
    wide = [x.double() if x is not None and x.is_floating_point() else x for x in inputs]
    attributes = {a.name: call.attributes.get(a.name, a.default) for a in composite.attributes}
    with torch.no_grad():
        expected = pytree.tree_leaves(composite.reference(*inputs, **attributes))
        try:
            ideal = pytree.tree_leaves(composite.reference(*wide, **attributes))
        # A reference may accept some dtypes only.
        except RAISES:
            ideal = expected
    return _Case(call, dtype, expected, ideal)


# ---------------------------------------------------------------------- models
@dataclass
class _Models:
    """Models of one call each, without a body: only the kernel can run them.

    Attributes:
        composite: The declaration.
        protos: The serialized models.
    """

    composite: Composite
    protos: list[bytes] = field(default_factory=list)
    _names: list[list[str]] = field(default_factory=list)
    _known: dict[Any, int] = field(default_factory=dict)

    def of(self, case: _Case) -> int:
        """Return the index of a model for a call; calls that differ in sizes only share one."""
        call = case.call
        # Each model needs a session: calls that differ in sizes only share one.
        kinds = [(n, x.dtype, x.shape if call.fixed else x.ndim) for n, x in call.inputs.items()]
        key = (repr(kinds), repr(sorted(call.attributes.items())))
        if key not in self._known:
            model = self._model(case)
            self._known[key] = len(self.protos)
            self._names.append([str(value.name) for value in model.graph.inputs])
            self.protos.append(to_proto(model).SerializeToString())
        return self._known[key]

    def passed(self, model: int, call: ExampleCall) -> list[torch.Tensor]:
        """Return the inputs of a call in the order of the model's inputs."""
        return [call.inputs[name] for name in self._names[model]]

    def _model(self, case: _Case) -> ir.Model:
        graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET}, name="main")
        names, calls = Names(), CompositeCalls()
        op = OpBuilder(Scope(graph, names), _OPSET, calls)
        values = [self._input(graph, declared.name, case) for declared in self.composite.inputs]
        results = op.composite_outputs(self.composite, values, **case.call.attributes)
        for index, (result, expected) in enumerate(zip(results, case.expected, strict=True)):
            result.name = names.unique(self.composite.outputs[index])
            result.shape = ir.Shape(_dims(f"out_{index}", expected, fixed=case.call.fixed))
            graph.outputs.append(result)
        # A composite makes one call; its body is left out, so that onnxruntime cannot fall back to
        # it.
        (call,) = calls.calls
        graph.opset_imports[call.node.domain] = 1
        return LoweredProgram(graph, names).model([], "main")

    @staticmethod
    def _input(graph: ir.Graph, name: str, case: _Case) -> ir.Value | None:
        tensor = case.call.inputs.get(name)
        if tensor is None:
            return None
        value = ir.Value(name=name, type=ir.TensorType(ir_dtype(tensor.dtype)))
        set_dims(value, tuple(tensor.shape))  # the composite checks the sizes
        value.shape = ir.Shape(_dims(name, tensor, fixed=case.call.fixed))
        graph.inputs.append(value)
        return value


def _dims(name: str, tensor: torch.Tensor, *, fixed: bool) -> list[int | str]:
    return [size if fixed else f"{name}_{axis}" for axis, size in enumerate(tensor.shape)]


# ---------------------------------------------------------------------- results
def _difference(
    composite: Composite, case: _Case, outputs: Sequence[Array], tolerances: Tolerances
) -> str:
    """Return how the outputs differ from the reference; empty if they do not."""
    for name, got, reference, ideal in zip(
        composite.outputs, outputs, case.expected, case.ideal, strict=True
    ):
        expected = _array(reference)
        if got.dtype != expected.dtype or got.shape != expected.shape:
            texts = (type_text(x.dtype.name, x.shape) for x in (got, expected))
            return "{} is {}, the reference returns {}".format(name, *texts)
        tolerance = tolerance_of(name, expected.dtype.name, tolerances)
        wrong = _wrong(got, expected, _array(ideal), tolerance, case.call.values)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            place = f"{name}[{', '.join(map(str, at))}]" if at else name
            return (
                f"{place} is {got[at]}, the reference returns {expected[at]} "
                f"({int(wrong.sum())} of {got.size} elements differ; tolerance "
                f"{tolerance[0]:g} relative + {tolerance[1]:g} absolute)"
            )
    return ""


def _wrong(
    got: Array, expected: Array, ideal: Array, tolerance: Tolerance, values: Values
) -> Array:
    """Return which elements are wrong.

    An element is not compared if the reference is finite in one dtype only. For values of very
    different magnitudes, the error of a sum is that of its largest terms, so that a kernel may err
    by as much as the reference does.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = ideal.astype(expected.dtype)
        # Integers and booleans have no rounding errors.
        if values == "wide" and expected.dtype.kind not in "biu":
            e, i = expected.astype(np.float64), ideal.astype(np.float64)
            errors = np.maximum(np.abs(e - i), np.abs(e) * float(ml_dtypes.finfo(got.dtype).eps))
            largest = np.max(errors, initial=0.0, where=np.isfinite(errors))
            tolerance = (tolerance[0], tolerance[1] + _CONDITION_FACTOR * float(largest))
    # With an infinite tolerance: where both are finite, or the same infinity, or NaN.
    decided = _close(expected, rounded, (0.0, np.inf))
    # A kernel may be more accurate than the reference: the result in float64 counts as well.
    close = _close(got, expected, tolerance) | _close(got, ideal, tolerance) | (got == rounded)
    wrong: Array = decided & ~close
    return wrong


def _array(tensor: torch.Tensor) -> Array:
    """Return a tensor as an array; bfloat16 is ``ml_dtypes.bfloat16``."""
    return TorchTensor(tensor.detach().contiguous()).numpy()


def _close(got: Array, expected: Array, tolerance: Tolerance) -> Array:
    """Return which elements are within the tolerance; NaN equals NaN."""
    a, e = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        within = np.abs(a - e) <= tolerance[1] + tolerance[0] * np.abs(e)
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    close: Array = same | (within & np.isfinite(a) & np.isfinite(e))
    return close
