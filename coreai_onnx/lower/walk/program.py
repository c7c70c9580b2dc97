"""Lowers an exported program to an ONNX graph: inputs, weights, states, nodes, outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from coreai_onnx.errors import ConversionError, LoweringError, UnsupportedOpsError
from coreai_onnx.export.capture.relations import relations
from coreai_onnx.export.capture.symbols import range_constraints, symbol_names
from coreai_onnx.export.deferred import onnx_tensor
from coreai_onnx.export.functionalize.attributes import warn_of_changed_parameters
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import (
    POWERS,
    Value,
    ir_dtype,
    is_complex,
    mark_complex,
    mark_powers,
    no_output,
    set_dims,
    stored_as,
)
from coreai_onnx.lower.walk.context import Context
from coreai_onnx.lower.walk.interface import IONames, arguments_entry, interface
from coreai_onnx.lower.walk.origins import nested_origins, value_origins
from coreai_onnx.lower.walk.walker import Walker
from coreai_onnx.model.checks.violations import WHERE
from coreai_onnx.model.metadata import ARGUMENTS, COMPLEX, MUTATED_INPUTS, STATES, Relation
from coreai_onnx.model.provenance.source_lines import CODE, VALUES, code_entry, values_entry

# The first version with metadata_props of nodes (ONNX 1.16). onnxruntime rejects versions that it
# does not know, so a later one would exclude older releases.
IR_VERSION = 10
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass
class LoweredProgram:
    """An exported program as an ONNX graph, with data for later stages."""

    graph: ir.Graph
    names: Names
    states: list[tuple[str, str]] = field(default_factory=list)
    mutated_inputs: list[tuple[str, str]] = field(default_factory=list)
    ranges: dict[str, dict[str, int]] = field(default_factory=dict)
    relations: list[Relation] = field(default_factory=list)
    origins: Mapping[str, str] = field(default_factory=dict)
    arguments: str = ""

    def model(self, functions: Sequence[ir.Function], entrypoint: str) -> ir.Model:
        """Return the model that consists of the graph and the functions it calls."""
        graph = self.graph
        model = ir.Model(
            graph,
            ir_version=IR_VERSION,
            producer_name="coreai_onnx",
            functions=functions,
            metadata_props={"coreai.entrypoint": entrypoint},
        )
        for function in functions:
            # onnxruntime looks up the version of a call's domain in the imports of the model.
            graph.opset_imports.setdefault(function.domain, 1)
            for domain, version in function.opset_imports.items():
                graph.opset_imports.setdefault(domain, version)
        for key, pairs in ((STATES, self.states), (MUTATED_INPUTS, self.mutated_inputs)):
            if pairs:
                texts = [{"input": i, "output": o} for i, o in pairs]
                model.metadata_props[key] = json.dumps(texts)
        if names := [str(v.name) for v in (*graph.inputs, *graph.outputs) if is_complex(v)]:
            model.metadata_props[COMPLEX] = json.dumps(names)
        if self.ranges:
            text = json.dumps(self.ranges, sort_keys=True)
            model.metadata_props["coreai.range_constraints"] = text
        if self.relations:
            conditions = [{k: v for k, v in asdict(r).items() if v} for r in self.relations]
            model.metadata_props["coreai.relations"] = json.dumps(conditions)
        if self.arguments:
            model.metadata_props[ARGUMENTS] = self.arguments
        if entry := values_entry(self.origins):
            model.metadata_props[VALUES] = entry
        roots = (graph, *(function.graph for function in functions))
        places = (node.meta.get(WHERE) for root in roots for node in root.all_nodes())
        lines = {place.source: place.code for place in places if place and place.code}
        if lines:
            model.metadata_props[CODE] = code_entry(lines)
        return model


class ProgramLowering:
    """Lowers one exported program.

    Args:
        program: The program, which must be functional (without in-place ops).
        context: The conversion.
        io_names: User-defined names.
    """

    def __init__(self, program: ExportedProgram, context: Context, io_names: IONames) -> None:
        """Create an empty graph."""
        self.program, self.context = program, context
        self.names = Names()
        graph = ir.Graph([], [], nodes=[], opset_imports={"": context.opset}, name="main")
        self.scope = Scope(graph, self.names)
        self.op = OpBuilder(self.scope, context.opset, context.composites, context.oldest)
        self._signature = program.graph_signature
        self.interface = interface(program, io_names, self.names)
        self._weights: dict[Any, Value] = {}
        self.weights_by_path: dict[Any, Value] = {}
        self._states: list[tuple[str, str]] = []
        self._mutated_inputs: list[tuple[str, str]] = []
        self._returned: dict[str, str] = {}
        context.symbols.update(symbol_names(program))

    def run(self) -> LoweredProgram:
        """Lower the program.

        Raises:
            UnsupportedOpsError: All ops without a lowering.
            ConversionError: An input or output of a kind that ONNX cannot represent.
        """
        inputs = self._make_inputs()
        weights = self.weights_by_path | self._weights
        walker = Walker(self.context, self.op, self.program.graph_module, weights)
        results = walker.walk(self.program.graph_module.graph, inputs, self.context.step)
        self.scope.where = None
        # Only after the walk, so that one error lists all missing ops.
        if self.context.missing:
            raise UnsupportedOpsError(self.context.missing)
        self._make_outputs(list(results))
        warn_of_changed_parameters(self.program)
        self._drop_unused_weights()
        ranges = range_constraints(self.program, self.context.symbols)
        conditions = relations(self.program, self.context.symbols)
        origins = value_origins(self.scope.graph, walker.values, self._returned)
        modules = self.program.graph_module.named_modules()
        origins |= nested_origins(modules, self.context.nested)
        return LoweredProgram(
            self.scope.graph,
            self.names,
            self._states,
            self._mutated_inputs,
            ranges,
            conditions,
            origins,
            arguments_entry(self.program, self.interface),
        )

    # ------------------------------------------------------------------ inputs
    def _make_inputs(self) -> list[Any]:
        specs = self._signature.input_specs
        fixed = self.interface.inputs | self.interface.states
        placeholders = (n for n in self.program.graph.nodes if n.op == "placeholder")
        values = [
            self._make_input(spec, node.meta.get("val"), fixed.get(spec.arg.name))
            for spec, node in zip(specs, placeholders, strict=True)
        ]
        # After all inputs: a symbol that is itself an input is read there, not from an axis.
        for value in [v for v in values if isinstance(v, ir.Value)]:
            self.scope.dims.bind_axes(value, value.meta["dims"])
        return values

    def _make_input(self, spec: InputSpec, example: Any, name: str | None) -> Any:
        """Return the value of one placeholder: an input, a weight, or a baked-in constant."""
        if spec.kind in _WEIGHTS:
            return self._weight(spec, name)
        if spec.kind == InputKind.TOKEN:
            return None
        if spec.kind != InputKind.USER_INPUT:
            raise ConversionError(f"input {spec.arg.name}: {spec.kind} has no ONNX form")
        if isinstance(spec.arg, ConstantArgument):
            return spec.arg.value
        if isinstance(spec.arg, TensorArgument):
            return self._tensor_input(str(name), example)
        return self._number_input(spec, str(name), example)

    def _tensor_input(self, name: str, example: torch.Tensor) -> Value:
        value = self.context.value_like(name, example)
        self.scope.graph.inputs.append(value)
        return value

    def _number_input(self, spec: InputSpec, name: str, example: Any) -> Any:
        """Return a 0-d input for a Python number that remains symbolic."""
        kinds = {SymIntArgument: torch.int64, SymFloatArgument: torch.float64}
        kinds[SymBoolArgument] = torch.bool
        value = ir.Value(name=name, type=ir.TensorType(ir_dtype(kinds[type(spec.arg)])))
        set_dims(value, ())
        self.scope.graph.inputs.append(value)
        expression = self.context.expression(example)
        if isinstance(expression, sympy.Symbol):
            self.scope.dims.bind_scalar(expression, value)
        return expression

    def _weight(self, spec: InputSpec, state_name: str | None) -> Value:
        """Return a weight as an initializer; one with a state name is an input as well."""
        target = str(spec.target)
        tensor = self._tensor_of(spec)
        key = storage_key(tensor)
        # A state is never tied to a weight: its value changes, the weight's does not.
        if state_name is None and key in self._weights:
            self.weights_by_path[target] = self._weights[key]
            return self._weights[key]
        name = state_name or self.names.unique(target)
        stored = stored_as(tensor)
        if state_name is not None:  # the module continues to mutate its own buffer
            stored = stored.clone()
        const = onnx_tensor(tensor, stored, name)
        value = ir.Value(name=name, const_value=const, type=ir.TensorType(const.dtype))
        set_dims(value, tuple(int(d) for d in stored.shape))
        if tensor.is_complex():
            mark_complex(value)
        if tensor.dtype == POWERS:
            mark_powers(value)
        self.scope.graph.register_initializer(value)
        self.weights_by_path[target] = value
        # In ONNX, an initializer of an input's name is its default: the first call needs no state.
        if state_name is not None:
            self.scope.graph.inputs.append(value)
        elif key is not None:
            self._weights[key] = value
        return value

    def _tensor_of(self, spec: InputSpec) -> torch.Tensor:
        target = str(spec.target)
        if spec.kind == InputKind.PARAMETER or (
            spec.kind == InputKind.BUFFER and target in self.program.state_dict
        ):
            tensor = self.program.state_dict[target]
        else:
            tensor = self.program.constants[target]
        if not isinstance(tensor, torch.Tensor):
            raise ConversionError(f"{target}: a {type(tensor).__name__} has no ONNX form")
        return tensor

    # ------------------------------------------------------------------ outputs
    def _make_outputs(self, results: list[Any]) -> None:
        """Append the user outputs, then the new values of states and of mutated inputs."""
        specs = list(zip(self._signature.output_specs, results, strict=True))
        user = [
            (spec, x)
            for spec, x in specs
            if spec.kind == OutputKind.USER_OUTPUT and not (x is None or (isinstance(x, str)))
        ]
        for (spec, x), name in zip(user, self.interface.outputs, strict=True):
            self._append_output(x, name, spec)
        placeholders = {s.target: s.arg.name for s in self._signature.input_specs if s.target}
        for spec, x in specs:
            if spec.kind in _MUTATIONS:
                placeholder = placeholders.get(spec.target, str(spec.target))
                state = self.interface.states.get(placeholder)
                changed = state or self.interface.inputs[placeholder]
                name = self.interface.new_values[changed]
                self._append_output(x, name, spec)
                (self._states if state else self._mutated_inputs).append((changed, name))
        if not self.scope.graph.outputs:
            raise ConversionError(
                "the module returns no tensor and no number, and changes no state",
                advice="return a tensor; None and strings are omitted: ONNX lacks them",
            )

    def _append_output(self, x: Any, name: str, spec: OutputSpec) -> None:
        """Make ``x`` a separate graph output, with the name reserved for it."""
        if not isinstance(x, ir.Value):
            x = self._number(x) if isinstance(x, sympy.Basic) else self.op.const(x)
        if (forbidden := no_output(x)) is not None:
            producer = x.producer()
            where = None if producer is None else producer.meta.get(WHERE)
            raise LoweringError(forbidden.reason, where, forbidden.advice)
        # ONNX allows a value only once among the outputs, and inputs and constants keep their
        # names.
        if x.producer() is None or x.is_graph_output() or x.const_value is not None:
            x = self.op.copy(x)
        x.name = name
        self.scope.graph.outputs.append(x)
        if isinstance(spec.arg, TensorArgument):
            self._returned[name] = spec.arg.name

    def _number(self, x: sympy.Basic) -> Value:
        """Return a symbolic number, in float32 if it was cast to float64 from a narrower dtype."""
        value = self.op.dim(x)
        read = value.producer()
        if value.dtype == ir.DataType.DOUBLE and read is not None and read.op_type == "Cast":
            (narrow,) = read.inputs
            assert narrow is not None
            return self.op.cast(narrow, ir.DataType.FLOAT)
        return value

    def _drop_unused_weights(self) -> None:
        graph = self.scope.graph
        inputs = {v.name for v in graph.inputs}
        for name, value in list(graph.initializers.items()):
            if name not in inputs and not value.uses() and not value.is_graph_output():
                del graph.initializers[name]


def storage_key(tensor: torch.Tensor) -> Any:
    """Return a key that is equal for equal views of one storage: tied weights are stored once."""
    # All such tensors have the address 0, and would count as one weight.
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return None
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
