"""Calls of externalized modules, and the functions they call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from coreai_onnx.bodies.body import forget_types
from coreai_onnx.bodies.modules.delegates import DelegateCalls
from coreai_onnx.bodies.modules.functions import (
    ModuleFunction,
    close_body,
    composite_attributes,
    declarations,
    open_body,
)
from coreai_onnx.bodies.modules.onnx_calls import OnnxCalls
from coreai_onnx.bodies.modules.recognized import call_as_composite
from coreai_onnx.bodies.modules.regions import call_region
from coreai_onnx.composites.declaration import MODULE_DOMAIN, USER_DOMAIN
from coreai_onnx.errors import ConversionError, ExternalizationError
from coreai_onnx.export.compat.torch_names import REGION, pytree
from coreai_onnx.export.externalize.delegate_call import DELEGATE
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.export.externalize.onnx_call import ONNX_CALL
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, dtype_of, ir_dtype, set_dims
from coreai_onnx.lower.walk.context import Context
from coreai_onnx.lower.walk.program import storage_key
from coreai_onnx.lower.walk.walker import Walker

_PREFIX = "module."


@dataclass
class ModuleCalls:
    """Lowers calls of externalized modules; inner functions precede those that call them.

    Args:
        calls: The calls of the exported program, by tag.
        delegates: Lowers calls of delegated parts.
        models: Lowers calls of ONNX models.
    """

    calls: Mapping[str, ModuleCall]
    delegates: DelegateCalls = field(default_factory=DelegateCalls)
    models: OnnxCalls = field(default_factory=OnnxCalls)
    _functions: dict[Any, ModuleFunction] = field(default_factory=dict)
    _proven: dict[Any, Any] = field(default_factory=dict)
    _signatures: dict[str, tuple[type, tuple[str, ...]]] = field(default_factory=dict)

    def __call__(
        self, walker: Walker, node: torch.fx.Node, args: Sequence[Any], _kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Lower one call to a standard composite if it is one, otherwise to its own function."""
        if node.target is REGION:
            return call_region(walker, node, args, self._functions)
        if node.target is DELEGATE:
            return self.delegates(walker, *args)
        if node.target is ONNX_CALL:
            return self.models(walker, *args)
        tensors, buffers, numbers, tag = args
        call = self.calls[tag]
        leader = call.leader
        # The program may have changed buffers before this call, which therefore gets their values.
        now = dict(zip(call.buffers, buffers, strict=True))

        def weight(path: str) -> Value:
            tensor = _tensor_at(call.module, path)
            buffer = next((p for p, t in call.module.named_buffers() if t is tensor), None)
            return now[buffer] if buffer is not None else _weight(walker, call, path, tensor)

        if call.spec.declaration is not None:
            operands, examples = (tensors, numbers), _examples(node)
            outputs = call_as_composite(walker.op, call, operands, examples, weight, self._proven)
            if outputs is not None:
                return outputs
        if leader.tag not in self._functions:
            self._functions[leader.tag] = self._make(walker.context, leader, tensors, numbers)
        self._check_name(call)
        function = self._functions[leader.tag]
        weights = [weight(path) for path in function.weights]
        inputs = [*tensors, *(walker.op.dim(n) for n in numbers), *weights]
        domain = function.function.domain
        outputs = walker.op.call(
            domain,
            function.function.name,
            inputs,
            composite_attributes(call) if domain == USER_DOMAIN else {},
            outputs=len(function.function.outputs),
        )
        producer = outputs[0].producer()
        assert producer is not None
        function.calls.append(producer)
        return outputs

    def functions(self, composites: Sequence[ir.Function]) -> list[ir.Function]:
        """Return the functions, equal bodies merged; different ones get ``.2``, ``.3`` and so on.

        Args:
            composites: The composites of the program, which have their final names.
        """
        kept: dict[tuple[str, str], dict[str, ir.Function]] = {}
        for module_function in self._functions.values():
            function = module_function.function
            base = (function.domain, function.name)
            bodies = kept.setdefault(base, {})
            forget_types(function.graph)
            text = ir.to_proto(function).SerializeToString().hex()
            # Equal modules, such as the layers of a model, share one function.
            if text not in bodies:
                if bodies:
                    function.name = f"{function.name}.{len(bodies) + 1}"
                bodies[text] = function
            for node in module_function.calls:
                node.op_type = bodies[text].name
        merged = [function for bodies in kept.values() for function in bodies.values()]
        return [
            *self.models.functions([*composites, *merged]),
            *merged,
            *self.delegates.functions(),
        ]

    def _check_name(self, call: ModuleCall) -> None:
        """Raise if classes with different arguments have the same composite name."""
        name = call.spec.composite_op_name
        if name is None:
            return
        mine = (
            type(call.module),
            tuple(inspect.signature(type(call.module).forward).parameters)[1:],
        )
        first = self._signatures.setdefault(name, mine)
        if first[0] is not mine[0] and first[1] != mine[1]:
            raise ExternalizationError(
                f"{call.path}: the composite {name} is {_written(*mine)} here "
                f"and {_written(*first)} elsewhere",
                advice="give each class a composite_op_name of its own",
            )

    # ------------------------------------------------------------------ one function
    def _make(
        self,
        context: Context,
        call: ModuleCall,
        tensors: Sequence[Value],
        numbers: Sequence[Any],
    ) -> ModuleFunction:
        program = call.body
        assert program is not None, "bodies are exported with the program"
        inner, op = open_body(context, program, call.path)
        graph = op.scope.graph
        inputs, weights = _inputs(program, inner, op, call, tensors)
        sources: dict[Any, Value] = {call.inner_path(path): v for path, v in weights.items()}
        # The body may reach a weight by another path; its storage identifies it.
        sources |= {storage_key(_tensor_at(call.module, path)): v for path, v in weights.items()}
        walker = Walker(inner, op, program.graph_module, sources)
        results = walker.walk(program.graph_module.graph, inputs)
        outputs, changed = _results(program, call, results, weights)
        close_body(op, [*outputs, *changed], _output_names(call))
        used = _drop_unused(graph, weights, len(call_tensors(call)) + len(numbers))
        function = ir.Function(
            USER_DOMAIN if call.spec.composite_op_name else MODULE_DOMAIN,
            call.spec.composite_op_name or type(call.module).__name__,
            graph=graph,
            attributes=declarations(composite_attributes(call)),
        )
        return ModuleFunction(function, tuple(used))


def _written(class_: type, parameters: Sequence[str]) -> str:
    return f"{class_.__name__}({', '.join(parameters)})"


def call_tensors(call: ModuleCall) -> list[str]:
    """Return the names of the tensor arguments of a call: parameter names, with keys inside.

    Raises:
        ExternalizationError: If an argument is an object other than a plain container, such as a
            cache.
    """
    try:
        filled = pytree.tree_unflatten(list(range(len(call.leaves))), call.tree)
    except Exception as error:  # third-party objects may raise anything
        raise ExternalizationError(
            f"the externalized module {call.path or '(root)'} takes an object that is not a plain "
            f"container of tensors ({error})",
            advice="changes to such an object, for example a cache, would be lost: pass tensors "
            "and return new ones, or leave the module out of externalize_modules",
        ) from error
    paths = pytree.tree_flatten_with_path(filled)[0]
    return [
        "_".join(_part(entry) for entry in path)
        for (path, _), leaf in zip(paths, call.leaves, strict=True)
        if leaf == "tensor"
    ]


def _part(entry: Any) -> str:
    # Entries of a pytree path: keys of dicts, names of fields, indices of sequences.
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _output_names(call: ModuleCall) -> list[str]:
    filled = pytree.tree_unflatten(list(range(len(call.out_leaves))), call.out_tree)
    paths = pytree.tree_flatten_with_path(filled)[0]
    names = [
        "_".join(_part(entry) for entry in path)
        for (path, _), leaf in zip(paths, call.out_leaves, strict=True)
        if leaf == "tensor"
    ]
    changed = [f"{path.replace('.', '_')}_out" for path in call.changed or ()]
    if len(names) == 1 and not names[0]:
        return ["output", *changed]
    # Results in a tuple have an index instead of a name.
    return [*(n if n and not n[0].isdigit() else f"output_{n}" for n in names), *changed]


def _results(
    program: ExportedProgram, call: ModuleCall, results: Sequence[Any], weights: Mapping[str, Value]
) -> tuple[list[Value], list[Value]]:
    """Return the results of a body, and the new values of the buffers that the call mutates.

    Raises:
        ExternalizationError: If the body mutates something that no output of the call returns.
    """
    outputs: list[Value] = []
    changed: dict[str, Value] = {}
    # By identity, because a buffer may have several paths.
    paths = {id(tensor): path for path, tensor in call.module.named_buffers()}
    for spec, value in zip(program.graph_signature.output_specs, results, strict=True):
        if spec.kind == OutputKind.BUFFER_MUTATION:
            path = str(spec.target).removeprefix(_PREFIX)
            changed[paths[id(_tensor_at(call.module, path))]] = value
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            raise ExternalizationError(
                f"the externalized module {call.path or '(root)'} changes its argument "
                f"{spec.target} in place",
                advice="return the new value instead, or leave it out of externalize_modules",
            )
        elif value is not None and spec.kind != OutputKind.PARAMETER_MUTATION:
            outputs.append(value)
    unexpected = changed.keys() - set(call.changed or ())
    if unexpected:
        raise ExternalizationError(
            f"the externalized module {call.path or '(root)'} changes "
            f"{', '.join(sorted(unexpected))} in place, but only when it is exported by itself",
            advice="leave it out of externalize_modules",
        )
    return outputs, [changed[p] if p in changed else weights[p] for p in call.changed or ()]


def _inputs(
    program: ExportedProgram,
    context: Context,
    op: OpBuilder,
    call: ModuleCall,
    arguments: Sequence[Value],
) -> tuple[list[Any], dict[str, Value]]:
    """Return a value for each placeholder, and the values of weights by path in the module."""
    graph, scope = op.scope.graph, op.scope
    tensor_names = iter(call_tensors(call))
    dtypes = iter(arguments)
    values: list[Any] = []
    weights: dict[str, Value] = {}
    later: list[Value] = []
    placeholders = (n for n in program.graph.nodes if n.op == "placeholder")
    for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True):
        example = node.meta.get("val")
        if spec.kind == InputKind.CONSTANT_TENSOR:
            values.append(op.const(program.constants[str(spec.target)]))
            continue
        if isinstance(example, torch.Tensor):
            weight = spec.kind != InputKind.USER_INPUT
            name = str(spec.target).removeprefix(_PREFIX) if weight else next(tensor_names)
            value = ir.Value(name=scope.names.unique(name))
            value.dtype = ir_dtype(example.dtype if weight else dtype_of(next(dtypes)))
            set_dims(value, context.dims(example))
            scope.dims.bind_axes(value, value.meta["dims"])
            if weight:
                weights[name] = value
                later.append(value)
            else:
                graph.inputs.append(value)
            values.append(value)
        elif isinstance(example, torch.SymInt):
            value = ir.Value(name=scope.names.unique(node.name))
            value.dtype = ir.DataType.INT64
            graph.inputs.append(set_dims(value, ()))
            expression = context.expression(example)
            scope.dims.bind_scalar(expression, value)
            values.append(expression)
        else:
            values.append(example)
    # Weights follow the arguments, in whatever order the program has them.
    graph.inputs.extend(later)
    return values, weights


def _drop_unused(graph: ir.Graph, weights: Mapping[str, Value], arguments: int) -> list[str]:
    """Remove unused weights from the inputs of the body; return the paths of the used ones."""
    used = []
    for path, value in weights.items():
        if value.uses():
            used.append(path)
        else:
            graph.inputs.remove(value)
    assert len(graph.inputs) == arguments + len(used)
    return used


def _tensor_at(module: torch.nn.Module, path: str) -> torch.Tensor:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    assert isinstance(value, torch.Tensor)
    return value


def _examples(node: torch.fx.Node) -> tuple[list[torch.Tensor], list[Any]]:
    """Return the fake tensors and symbolic numbers of a call in the exported program."""
    arguments = (node.args[0], node.args[2])
    examples = torch.fx.map_arg(arguments, lambda n: n.meta["val"])
    return examples  # type: ignore[return-value]  # by the op's schema


def _weight(walker: Walker, call: ModuleCall, path: str, tensor: torch.Tensor) -> Value:
    """Return the value of a weight; a weight missing from the program is added.

    A user-defined exporter may drop weights that only an externalized module reads.
    """
    storage = storage_key(tensor)
    try:
        return walker.weight(call.inner_path(path), storage)
    except ConversionError:
        scope = walker.op.scope.root
        # Inside a function, weights must be inputs.
        if scope.constants_as_nodes:
            raise
    name = call.inner_path(path)
    stored = TorchTensor(tensor.detach().contiguous(), name=name)
    value = scope.constant(stored, name)
    walker.keep_weight(name, storage, value)
    return value
