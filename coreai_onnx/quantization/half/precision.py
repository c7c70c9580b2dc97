"""Programs in 16-bit floats, and the report of what stayed in float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import onnx_ir as ir

from coreai_onnx.errors import QuantizationError, failures_as
from coreai_onnx.messages import begin_stage, render, size_text
from coreai_onnx.model.checks.violations import new_violations
from coreai_onnx.model.inventory import graphs, op_name, weights
from coreai_onnx.model.metadata import adopt, read_complex, read_states
from coreai_onnx.model.provenance.debug_info import SCOPE
from coreai_onnx.quantization.calibration import Feed
from coreai_onnx.quantization.half.bodies import bodies, matching
from coreai_onnx.quantization.half.choices import Choices, Isolated
from coreai_onnx.quantization.half.magnitudes import Label, largest_magnitudes, module_function
from coreai_onnx.quantization.half.rewriting import HalfRewriting
from coreai_onnx.quantization.half.values import DTYPES

# ONNX admits bfloat16 in most ops from opset 13 on.
_OLDEST = 13
_SUFFIX = ".float32"


class DtypeOptions(TypedDict, total=False):
    """The options of a conversion to another dtype; all have defaults.

    Attributes:
        keep_io: Whether inputs and outputs stay float32; by default they are converted. States are
            always converted.
        keep: Patterns of module paths, names of nodes or op types that keep float32.
        calibration: The inputs of typical calls of the only entrypoint, or of ``main``, as for
            `OnnxProgram.quantize`: nodes whose values exceed float16's range keep float32.
    """

    keep_io: bool
    keep: Sequence[str]
    calibration: Iterable[Feed] | None


def convert_models(
    models: Mapping[str, ir.Model],
    calibrated: str,
    dtype: str,
    **options: Unpack[DtypeOptions],
) -> dict[str, DtypeReport]:
    """Convert the models of a program, in place.

    Args:
        models: The models by entrypoint. An error leaves all of them unchanged.
        calibrated: The entrypoint of the calibration data.
        dtype: ``"float16"`` or ``"bfloat16"``.
        **options: The options.

    Returns:
        The reports, by entrypoint.

    Raises:
        QuantizationError: The dtype is unknown, a pattern matches nothing, the opset is too old,
            the calibration data does not fit, a model is in the other dtype of 16 bits already, or
            nothing in the models is float32.
    """
    if unknown := set(options) - DtypeOptions.__optional_keys__:
        names = ", ".join(sorted(DtypeOptions.__optional_keys__))
        raise QuantizationError(f"there is no option {min(unknown)!r}; there are {names}")
    keep, feeds = options.get("keep", ()), options.get("calibration")
    if dtype not in DTYPES:
        raise QuantizationError(f"dtype={dtype!r}; choose from {', '.join(DTYPES)}")
    if isinstance(keep, str):
        raise QuantizationError(f"keep must be a list of patterns, got {keep!r}")
    for model in models.values():
        _refuse_other(model, dtype)
    # No model changes before all copies are converted, so that an error leaves the program as it
    # is.
    reports: dict[str, DtypeReport] = {}
    copies: dict[str, ir.Model] = {}
    used: set[str] = set()
    with failures_as(QuantizationError, "the model cannot be converted"):
        for name, model in models.items():
            calls = feeds if name == calibrated else None
            magnitudes = {} if calls is None else largest_magnitudes(model, calls)
            begin_stage(f"convert {name} to {dtype}")
            copies[name], reports[name], matched = _converted(model, dtype, options, magnitudes)
            used |= matched
    if unused := [pattern for pattern in keep if pattern not in used]:
        raise QuantizationError(
            f"the pattern {unused[0]!r} matches no module, node or op type\n"
            "  `print(program.to_text())` shows the names of nodes"
        )
    if not any(
        report.converted
        or report.bytes_after < report.bytes_before
        or _end_types(copies[name]) != _end_types(models[name])
        for name, report in reports.items()
    ):
        raise QuantizationError(
            f"there is nothing to convert to {dtype}: no node, weight, input or output would change"
        )
    for name, copy in copies.items():
        adopt(copy, models[name])
    return reports


def _refuse_other(model: ir.Model, dtype: str) -> None:
    """Refuse a model in the other dtype of 16 bits, which has rounded it already."""
    (other,) = DTYPES.keys() - {dtype}
    ends = [*model.graph.inputs, *model.graph.outputs]
    # Weights may be stored in 16 bits for a computation in float32, by a Cast to float32.
    casts = [node for graph in graphs(model) for node in graph if node.op_type == "Cast"]
    weights = [
        node.inputs[0]
        for node in casts
        if node.attributes["to"].as_int() == ir.DataType.FLOAT and node.inputs[0] is not None
    ]
    stored = [value for value in weights if value.is_initializer()]
    for value in (*ends, *stored):
        if value.dtype == DTYPES[other]:
            raise QuantizationError(
                f"{value.name!r} is {other} already\n  convert the float32 model to {dtype}"
            )


def _end_types(model: ir.Model) -> list[ir.DataType | None]:
    return [value.dtype for value in (*model.graph.inputs, *model.graph.outputs)]


def _converted(
    model: ir.Model, dtype: str, options: DtypeOptions, magnitudes: Mapping[Label, float]
) -> tuple[ir.Model, DtypeReport, set[str]]:
    """Return a converted copy of a model, its report, and the patterns that matched."""
    keep = options.get("keep", ())
    opset = model.graph.opset_imports.get("", 1)
    if opset < _OLDEST:
        raise QuantizationError(f"the model has opset {opset}; {dtype} needs {_OLDEST} or later")
    # The conversion may be refused after it: the model must not change before the check.
    copy = model.clone()
    isolated = _isolate(copy, keep)
    choices = Choices(copy, DTYPES[dtype], keep, magnitudes, isolated)
    count = HalfRewriting(
        choices, _wide(copy, choices, keep_io=options.get("keep_io", False))
    ).run()
    if wrong := new_violations(model, copy):
        raise QuantizationError(f"the result would not be valid: {wrong[0]}\n  keep this node")
    kept = tuple(
        KeptNode(
            node.metadata_props.get(SCOPE, "") or node.name or "",
            op_name(node.domain, node.op_type),
            reason.text,
        )
        for node, reason in choices.kept.items()
    )
    report = DtypeReport(dtype, count, kept, weights(model)[1], weights(copy)[1])
    return copy, report, choices.used | set(isolated.calls.values())


def _isolate(model: ir.Model, keep: Sequence[str]) -> Isolated:
    """Give calls that keep float32 functions of their own.

    These are the calls that a pattern selects, and those in the bodies of nodes that it selects.
    """
    isolated = Isolated(set(), {})
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for root in roots:
        converted = {node for graph in (root, *bodies(root, keep)) for node in graph}
        for node in root.all_nodes():
            if module_function(model, node) is None:
                continue
            patterns = matching(node, keep)
            if patterns:
                isolated.calls[node] = patterns[0]
            # What a body that keeps float32 calls keeps float32 too.
            if patterns or node not in converted:
                _copy_function(model, node, isolated.functions)
    # If all calls have the copy, nothing is left that calls the original.
    called = {node.op_identifier() for graph in graphs(model) for node in graph}
    for domain, name, overload in isolated.functions:
        original = (domain, name.removesuffix(_SUFFIX), overload)
        if original not in called:
            model.functions.pop(original, None)
    return isolated


def _copy_function(model: ir.Model, call: ir.Node, done: set[ir.OperatorIdentifier]) -> None:
    """Let a call have a copy of its function, and of those that this calls."""
    function = module_function(model, call)
    if function is None or function.identifier() in done:
        return
    key = (function.domain, f"{function.name}{_SUFFIX}", function.overload)
    # Several calls that are kept share one copy.
    if key not in done:
        copy = function.clone()
        copy.name = key[1]
        model.functions[key] = copy
        done.add(key)
        for inner in copy.all_nodes():
            _copy_function(model, inner, done)
    call.op_type = key[1]


def _wide(model: ir.Model, choices: Choices, *, keep_io: bool) -> set[str]:
    """Return the names of inputs and outputs that stay float32."""
    graph = model.graph
    ends = {value.name or "": value for value in (*graph.inputs, *graph.outputs)}
    states = read_states(model.metadata_props)
    flagged = {name for name, value in ends.items() if value in choices.values.flagged}
    # NumPy has no complex number of two 16-bit floats to make of such a pair.
    wide = flagged | set(read_complex(model.metadata_props))
    if keep_io:
        wide |= ends.keys() - {name for s in states for name in (s.input, s.output)}
    for state in states:
        # The output of a call is the input of the next one: both have one dtype.
        if {state.input, state.output} & flagged:
            wide |= {state.input, state.output}
    return wide


@dataclass(frozen=True)
class KeptNode:
    """A node that keeps float32.

    Attributes:
        path: Module path, or else the name of the node.
        op: Its op.
        reason: Why it keeps float32.
    """

    path: str
    op: str
    reason: str


@dataclass(frozen=True)
class DtypeReport:
    """What was converted; prints as text.

    Attributes:
        dtype: ``"float16"`` or ``"bfloat16"``.
        converted: Number of nodes that compute in this dtype.
        kept: The nodes that keep float32, in the order of the model.
        bytes_before: Size of all weights before.
        bytes_after: Their size after.
    """

    dtype: str
    converted: int
    kept: tuple[KeptNode, ...]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        """Return sizes, and how many nodes of each op keep float32 and why."""
        sizes = f"{size_text(self.bytes_before)} → {size_text(self.bytes_after)}"
        text = f"{self.dtype}: {self.converted} nodes, weights {sizes}"
        if not self.kept:
            return text
        counts = Counter((kept.op, kept.reason) for kept in self.kept)
        # The last entry of a key wins, which is the first node in reverse order.
        first = {(kept.op, kept.reason): kept.path for kept in reversed(self.kept)}
        rows = [(count, op, why, first[op, why]) for (op, why), count in counts.most_common()]
        return f"{text}\n\n{render(('nodes', 'op', 'keeps float32', 'first'), rows, indent='  ')}"
