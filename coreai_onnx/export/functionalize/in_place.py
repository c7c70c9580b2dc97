"""Functionalization: rewrites in-place ops as out-of-place ops, and updates the views.

torch functionalizes a program by retracing it, which takes ten milliseconds per node. The traced
program already shows which tensors share memory, because its fake tensors share storage. An
in-place op becomes the out-of-place op, its result is written back through the views, and other
views are recomputed where they are next read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.multiprocessing.reductions import StorageWeakRef

from coreai_onnx.export.compat.torch_names import OpOverload
from coreai_onnx.export.functionalize.batch_statistics import (
    TrainingNorm,
    updates_statistics,
    with_value,
)
from coreai_onnx.export.functionalize.lifted_constants import (
    LiftedConstants,
    lifted_constants,
    values_sharing_memory,
)
from coreai_onnx.export.functionalize.plain_ops import (
    changed_tensor,
    keeps_the_dtype,
    plain_arguments,
    plain_form,
)
from coreai_onnx.export.functionalize.replaced_graph import with_graph
from coreai_onnx.export.functionalize.views import Write, undone

aten = torch.ops.aten
_MUTATIONS = {
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.CONSTANT_TENSOR: OutputKind.BUFFER_MUTATION,
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
}
_DROPOUTS = (
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
)


class _CannotError(Exception):
    """The program has an op that only torch itself can functionalize."""


def without_in_place(
    program: ExportedProgram, names: Mapping[int, str] | None = None
) -> ExportedProgram | None:
    """Return the program without in-place ops; mutated buffers and inputs become extra outputs.

        y = x[0]; add_(y, 1); mul(x, 2)
        becomes
        y = x[0]; z = add(y, 1); x2 = select_scatter(x, z, 0, 0); mul(x2, 2)

    Args:
        program: The program; it is not changed.
        names: Names of state that torch treats as constants, by the id of the tensor.

    Returns:
        A new program, or None if a retrace is needed: for custom ops that mutate, and overlapping
        views.
    """
    constants = lifted_constants(program, names or {})
    try:
        root = _rebuilt(program.graph_module, constants)
    except _CannotError:
        return None
    signature = _signature(program, root, constants)
    states = {str(s.target): constants.tensors.get(s.arg.name) for s in signature.input_specs}
    return with_graph(program, root, signature, {k: x for k, x in states.items() if x is not None})


def without_in_place_inside(module: fx.GraphModule) -> fx.GraphModule | None:
    """Return a traced graph without in-place ops, or None if a retrace is needed."""
    try:
        return _rebuilt(module, None)
    except _CannotError:
        return None


def mutates(node: fx.Node) -> bool:
    """Whether a node mutates one of its arguments."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    if target is aten.detach_.default:
        return False  # it is applied to the copy of a literal and changes no values
    return target._schema.is_mutable or updates_statistics(node)


def _rebuilt(module: fx.GraphModule, constants: LiftedConstants | None) -> fx.GraphModule:
    """Return a module with its graph, and the graphs its nodes call, without in-place ops."""
    graph = _Rebuild(module.graph, constants).run()
    rebuilt = fx.GraphModule(module, graph)
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule) and any(map(mutates, child.graph.nodes)):
            setattr(rebuilt, name, _rebuilt(child, None))
    return rebuilt


class _Rebuild:
    """Copies a graph node by node, and replaces in-place ops.

    Tensors that share memory form a group. Each in-place op increments the version of the group; a
    view of an earlier version is recomputed where it is used. A tensor that an op like
    ``transpose_`` modifies is a different view of its memory from then on.

    Args:
        source: The graph; its nodes have fake values.
        constants: The constants of a program; None for a subgraph, whose inputs must not be
            mutated.
    """

    def __init__(self, source: fx.Graph, constants: LiftedConstants | None) -> None:
        self.source, self.outer = source, constants is not None
        self._constants = constants or LiftedConstants()
        self.graph = fx.Graph()
        self._current: dict[fx.Node, fx.Node] = {}
        self._inputs: dict[fx.Node, fx.Node] = {}
        self._made_at: dict[fx.Node, int] = {}
        self._versions: dict[StorageWeakRef, int] = {}
        self._turned: set[StorageWeakRef] = set()
        self._order = {node: i for i, node in enumerate(source.nodes)}
        self._groups: dict[fx.Node, tuple[StorageWeakRef, ...]] = {}
        self._members: dict[StorageWeakRef, list[fx.Node]] = {}
        self._parents: dict[fx.Node, fx.Node | None] = {}
        self._find_shared_memory()

    def run(self) -> fx.Graph:
        """Return the new graph."""
        for node in self.source.nodes:
            if node.op == "output":
                self._output(node)
            elif mutates(node):
                self._mutation(node)
            elif (twin := self._twin(node)) is not None:
                self._settle(node, self._use(twin))
            else:
                copied = self.graph.node_copy(node, self._use)
                if node.op == "placeholder":
                    self._inputs[node] = copied
                    copied.name = node.name  # an argument called input would become input_1
                self._settle(node, copied)
        return self.graph

    # ------------------------------------------------------------------ memory
    def _find_shared_memory(self) -> None:
        """Record the memory of each node's results, and the argument that they are a view of."""
        same: dict[StorageWeakRef, StorageWeakRef] = {}
        shared_values = values_sharing_memory(self.source, self._constants)
        first = {n.name: n for n in self.source.nodes if n.op == "placeholder"}
        for node in self.source.nodes:
            storages = _memory(node, shared_values.get(node, node.meta.get("val")))
            if _returns_its_argument(node) or _writes_back(node):
                same.update(zip(storages, self._groups[node.args[0]], strict=True))
            groups = self._groups[node] = tuple(
                dict.fromkeys(same.get(key, key) for key in storages)
            )
            for key in groups:
                self._members.setdefault(key, []).append(node)
            sources = node.all_input_nodes if node.op == "call_function" else []
            if node.op == "placeholder" and node.name in self._constants.twins:
                sources = [first[self._constants.twins[node.name]]]
            shared = (a for a in sources if not set(groups).isdisjoint(self._groups[a]))
            parent = next(shared, None)
            if parent is not None and _is_list(parent) and self._parents[parent] is None:
                parent = None  # one of several results that are not views
            self._parents[node] = parent

    def _version(self, node: fx.Node) -> int:
        # A list of views may have several memories; the sum changes with each of them.
        return sum(self._versions.get(key, 0) for key in self._groups[node])

    def _settle(self, node: fx.Node, copied_node: fx.Node) -> None:
        self._current[node] = copied_node
        self._made_at[node] = self._version(node)

    def _twin(self, node: fx.Node) -> fx.Node | None:
        """Return the node whose tensor a node returns unchanged."""
        if _returns_its_argument(node) or node.name in self._constants.twins:
            return self._parents[node]
        return None

    def _is_its_parent(self, node: fx.Node) -> bool:
        return mutates(node) or self._twin(node) is not None

    # ------------------------------------------------------------------ reading
    def _use(self, node: fx.Node) -> fx.Node:
        """Return the node of the new graph with the present value; stale views are recomputed."""
        if self._made_at.get(node) != self._version(node):
            parent = self._parents[node]
            if parent is None or self._made_at.get(node) == _LOST:
                raise _CannotError(node)
            if self._is_its_parent(node):
                self._settle(node, self._use(parent))
            else:
                self._settle(node, self.graph.node_copy(node, self._use))
        return self._current[node]

    # ------------------------------------------------------------------ writing
    def _mutation(self, node: fx.Node) -> None:
        if updates_statistics(node):
            self._training_norm(node)
            return
        functional, changed = plain_form(node.target), changed_tensor(node)
        if functional is None or changed is None:
            raise _CannotError(node)
        groups = self._groups[changed]
        if len(groups) != 1 or groups != self._groups[node]:
            raise _CannotError(node)  # fake tensors do not show what shares memory
        if node.target is aten.resize_.default and self._parents[changed] is not None:
            raise _CannotError(node)  # the view may show other elements of its tensor
        args, kwargs = plain_arguments(functional, node.target, node.args, node.kwargs)  # type: ignore[arg-type]  # an op
        args, kwargs = fx.map_arg((args, kwargs), self._use)
        new = self._call(functional, args, kwargs, node)
        if torch.Tag.inplace_view in node.target.tags:  # type: ignore[union-attr]  # an op
            self._turned.add(groups[0])
            self._settle(changed, new)
            self._settle(node, new)
            return
        if groups[0] in self._turned:
            raise _CannotError(node)  # the memory layout of the views is no longer known
        if not keeps_the_dtype(node):
            new = self._in_its_dtype(new, node, changed)
        self._write(node, changed, new, groups[0])
        self._settle(node, new)

    def _training_norm(self, node: fx.Node) -> None:
        """Compute the norm, and write the new running statistics."""
        norm = TrainingNorm(self.graph, node, fx.map_arg(node.args, self._use))
        for changed, new in ((node.args[3], norm.mean), (node.args[4], norm.var)):
            groups = self._groups[changed]  # type: ignore[index]  # a node
            if len(groups) != 1 or groups[0] in self._turned:
                raise _CannotError(node)
            self._write(node, changed, new, groups[0])  # type: ignore[arg-type]  # a node
        self._settle(node, norm.result)

    def _call(self, target: Any, args: Any, kwargs: Any, like: fx.Node) -> fx.Node:
        name = target._schema.name.partition("::")[2].strip("_")
        call = self.graph.create_node("call_function", target, args, kwargs, name)
        call.meta = dict(like.meta)
        return call

    def _in_its_dtype(self, new: fx.Node, node: fx.Node, changed: fx.Node) -> fx.Node:
        """Return the result of the out-of-place op, cast to the dtype of the mutated tensor."""
        expected = changed.meta["val"]
        value = with_value(new, expected.fake_mode).meta["val"]
        if [str(n) for n in value.shape] != [str(n) for n in expected.shape]:
            raise _CannotError(node)  # torch resizes a tensor that is given as out
        if value.dtype == expected.dtype:
            return new
        return self._call(aten.to.dtype, (new, expected.dtype), {}, node)

    def _write(self, node: fx.Node, changed: fx.Node, new: fx.Node, group: StorageWeakRef) -> None:
        """Make ``new`` the value of a tensor, and write it into the tensors it is a view of."""
        values: list[tuple[fx.Node, fx.Node | None]] = [(changed, new)]
        view, value = changed, new
        while (parent := self._parents[view]) is not None:
            # The new value of a tensor that nothing reads needs no nodes.
            if not self._is_read_later(node, changed, parent, group):
                values.append((parent, None))
                break
            if _is_list(parent):  # the views of a split
                parent = self._parents[parent]
                assert parent is not None
            if self._is_its_parent(view):
                result: fx.Node | None = value
            else:
                result = undone(Write(self.graph, view, self._use(parent), value, self._use))
            if result is None:
                raise _CannotError(view)
            values.append((parent, result))
            view, value = parent, result
        # Before the tensors below are settled, which belong to the new version.
        self._versions[group] = self._versions.get(group, 0) + 1
        for tensor, present in values:
            if present is None:
                self._made_at[tensor] = _LOST
            else:
                self._settle(tensor, present)

    def _is_read_later(
        self, node: fx.Node, changed: fx.Node, parent: fx.Node, group: StorageWeakRef
    ) -> bool:
        """Whether another tensor of the group is read after an in-place op, or is an input."""
        if self._root(parent).op == "placeholder":
            return True
        now = self._order[node]
        others = (m for m in self._members[group] if m not in (node, changed))
        return any(self._order[user] > now for m in others for user in m.users)

    def _root(self, node: fx.Node) -> fx.Node:
        while (parent := self._parents[node]) is not None:
            node = parent
        return node

    # ------------------------------------------------------------------ outputs
    def _output(self, node: fx.Node) -> None:
        """Write the output node: the inputs' new values, then the results of the graph."""
        changed = [n for n in self.source.nodes if n.op == "placeholder" and self._is_changed(n)]
        if changed and not self.outer:
            raise _CannotError(node)
        result: Any = fx.map_arg(node.args[0], self._use)
        new = tuple(self._use(p) for p in changed)
        output = self.graph.output((*new, *result) if self.outer else result)
        output.meta = dict(node.meta)
        output.meta["changed"] = [p.name for p in changed]

    def _is_changed(self, node: fx.Node) -> bool:
        """Whether an input has a new value; a constant that is only overwritten has none."""
        if node.name in self._constants.twins or self._current[node].op == "placeholder":
            return False
        if node.name not in self._constants.tensors:
            return True
        argument = self._inputs[node]
        return any(
            x.target is not aten.copy.default or argument in x.args[1:] for x in argument.users
        )


_LOST = -1  # never equal to a version


def _memory(node: fx.Node, value: Any) -> list[StorageWeakRef]:
    """Return references to the storages of a node's results."""
    leaves = value if isinstance(value, list | tuple) else (value,)
    tensors = (x for x in leaves if isinstance(x, torch.Tensor) and x.layout == torch.strided)
    try:
        return [StorageWeakRef(x.untyped_storage()) for x in tensors]
    except NotImplementedError as error:  # tensors inside of vmap have no storage
        raise _CannotError(node) from error


def _is_list(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), list | tuple)


def _returns_its_argument(node: fx.Node) -> bool:
    """Whether a node is a dropout that is off: torch then returns the argument itself."""
    return node.op == "call_function" and node.target in _DROPOUTS and not node.args[2]


def _writes_back(node: fx.Node) -> bool:
    """Whether a node writes a buffer's new value; the fake results of some have separate memory."""
    return node.target is aten.copy_.default


def _signature(
    program: ExportedProgram, root: fx.GraphModule, constants: LiftedConstants
) -> ExportGraphSignature:
    """Return the signature of the rebuilt program: the inputs' new values come first."""
    signature = program.graph_signature
    output = root.graph.output_node()
    changed: list[str] = output.meta.pop("changed")
    results: Any = output.args[0]
    specs: list[OutputSpec] = []
    inputs = [s for s in signature.input_specs if s.arg.name not in constants.twins]
    inputs = [_as_buffer(s, constants.names) if s.arg.name in changed else s for s in inputs]
    by_name = {s.arg.name: s for s in inputs}
    for name, node in zip(changed, results, strict=False):
        source = by_name[name]
        kind = _MUTATIONS[source.kind]
        target = name if kind is OutputKind.USER_INPUT_MUTATION else source.target
        specs.append(OutputSpec(kind, TensorArgument(name=node.name), target))
    for spec, node in zip(signature.output_specs, results[len(changed) :], strict=True):
        named = isinstance(node, fx.Node) and hasattr(spec.arg, "name")
        arg = dataclasses.replace(spec.arg, name=node.name) if named else spec.arg
        specs.append(dataclasses.replace(spec, arg=arg))
    return ExportGraphSignature(inputs, specs)


def _as_buffer(spec: InputSpec, names: Mapping[str, str]) -> InputSpec:
    """Return the input spec of a mutated constant as that of a buffer."""
    if spec.kind is not InputKind.CONSTANT_TENSOR:
        return spec
    return InputSpec(InputKind.BUFFER, spec.arg, names[spec.arg.name], persistent=False)
