"""Externalized modules: each call of one is a single op in the exported program."""

from __future__ import annotations

import functools
import inspect
import string
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.export import ExportedProgram

from coreai_onnx.errors import ExternalizationError
from coreai_onnx.export.compat.dynamo import called_by_dynamo
from coreai_onnx.export.compat.regions import is_region, regions_called_by, unmarked
from coreai_onnx.export.compat.torch_names import TorchDynamoException, pytree
from coreai_onnx.export.externalize.attribute_reads import AttributeReads, is_recording, recording
from coreai_onnx.export.externalize.bodies import ModuleBody, example_inputs
from coreai_onnx.export.externalize.equivalence import (
    EQUIVALENCE_KEY,
    ModuleTree,
    SameObject,
    equivalence_key,
    structure,
)
from coreai_onnx.export.externalize.module_call import OP, ModuleCall, classify, fill
from coreai_onnx.export.externalize.specs import ExternalizeSpec, as_specs
from coreai_onnx.export.functionalize.buffers import (
    WRITES_INSIDE,
    buffer_paths,
    buffers_of,
    is_write_inside,
)
from coreai_onnx.export.functionalize.replaced_graph import nodes_of

__all__ = ["Externalization", "ExternalizeSpec", "ModuleCall"]


class MarkedFunction(torch.nn.Module):
    """A function that is marked as a region, with the modules among its arguments."""

    def __init__(self, function: Callable[..., Any], owners: Iterable[torch.nn.Module]) -> None:
        """Hold the modules, so that their weights have a path."""
        super().__init__()
        for name, owner in zip(string.ascii_lowercase, owners, strict=False):
            self.add_module(name, owner)
        self.forward = function


@dataclass(eq=False)
class Externalization:
    """The externalized modules of one model, patched while it is exported.

    Equivalent calls (same class and structure, arguments and shapes, and equal values of every
    attribute that the forward of the first call read) share the result layout and the body of the
    first call.

    Args:
        model: The model; it may be a target itself.
        specs: The specs or bare classes; the first that matches a module is used.

    Attributes:
        calls: The distinct calls that were traced, by tag.
        matches: Path, module and spec of every module that matches.
    """

    model: torch.nn.Module
    specs: Sequence[ExternalizeSpec | type]
    calls: dict[str, ModuleCall] = field(default_factory=dict)
    matches: list[tuple[str, torch.nn.Module, ExternalizeSpec]] = field(default_factory=list)
    _inside: list[torch.nn.Module] = field(default_factory=list)
    _known: dict[Any, list[ModuleCall]] = field(default_factory=dict)
    _patches: list[tuple[torch.nn.Module, Any, Any]] = field(default_factory=list)
    _regions: dict[Any, tuple[ExternalizeSpec, dict[Any, Any]]] = field(default_factory=dict)
    _active: bool = False

    @contextmanager
    def patched(self) -> Iterator[None]:
        """While active, every matching module is exported as a single op."""
        self.patch()
        try:
            with regions_called_by(self._call_region):
                yield
        finally:
            self.restore()

    def patch(self) -> None:
        """Replace every matching module's forward by a single op; an error restores the model."""
        self._active = True
        try:
            self.matches = self.matches or self._matches()
            for path, module, spec in self.matches:
                replacement = self._replacement(path, module, spec)
                self._patches.append((module, vars(module).get("forward"), replacement))
                module.forward = replacement
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Restore the forward of every module."""
        self._active = False
        for module, forward, replacement in reversed(self._patches):
            if vars(module).get("forward") is not replacement:
                continue  # another library has wrapped ours since
            if forward is None:
                del vars(module)["forward"]
            else:
                module.forward = forward
        self._patches.clear()

    def export_bodies(
        self,
        program: ExportedProgram,
        prepare: Callable[..., ExportedProgram],
        show: Callable[[list[Any]], Iterable[Any]] = iter,
    ) -> list[ModuleCall]:
        """Export one body per group of equivalent calls, nested calls included.

        The model must be patched.

        Args:
            program: The exported program of the model.
            prepare: Exports a body from its module, arguments and dynamic shapes.
            show: Shows the progress over the calls of the program.

        Returns:
            The calls in the program and in the bodies.

        Raises:
            ExternalizationError: If a module cannot be exported separately.
        """
        calls: dict[str, ModuleCall] = {}
        for node, call in show(self._calls_in(program)):
            # Under strict, torch drops the new values where it otherwise raises.
            if call.leader.changed and node.graph is not program.graph:
                raise ExternalizationError(WRITES_INSIDE[0], advice=WRITES_INSIDE[1])
            # The function of its composite is made from the declaration, not from this module.
            if call.is_reference:
                calls[call.tag] = call
                continue
            if call.leader.body is None:
                self._export_body(call.leader, node, prepare)
            # The export of the body may read attributes that the run of the calling program did
            # not.
            if call.leader is not call and not self._shares(call.leader, call.module):
                call.leader, call.changed = call, call.leader.changed
                self._export_body(call, node, prepare)
            assert call.leader.body is not None
            calls |= {call.tag: call, call.leader.tag: call.leader}
            calls |= {c.tag: c for c in self._nested(call.leader.body)}
        return list(calls.values())

    def not_called(self, called: Sequence[ModuleCall]) -> list[str]:
        """Return the paths of matching modules that neither the program nor the bodies call.

        Args:
            called: The result of :meth:`export_bodies`.
        """
        paths = {call.path for call in called}
        for call in called:
            leader = call.leader
            if leader is not call and leader.body is not None:
                paths_inside = {c.path for c in self._nested(leader.body)}
                inside = (p for p in paths_inside if p.startswith(leader.inner_path("")))
                paths |= {call.inner_path(p.removeprefix(leader.inner_path(""))) for p in inside}
        return [path for path, _, _ in self.matches if path not in paths]

    def _nested(self, program: ExportedProgram) -> Iterator[ModuleCall]:
        for _, call in self._calls_in(program):
            yield call
            if call.leader.body is not None:
                yield from self._nested(call.leader.body)

    # ------------------------------------------------------------------ bodies
    def _calls_in(self, program: ExportedProgram) -> list[tuple[torch.fx.Node, ModuleCall]]:
        nodes = [node for node in nodes_of(program.graph_module) if node.target is OP]
        return [(node, self.calls[str(node.args[3])]) for node in nodes]

    def _shares(self, leader: ModuleCall, module: torch.nn.Module) -> bool:
        """Whether all attributes that a body and its nested bodies read are equal in a module."""
        if leader.reads is None or not leader.reads.hold_for(module, latest=True):
            return False
        assert leader.body is not None
        leader_tree, tree = ModuleTree(leader.module), ModuleTree(module)
        for _, inner in self._calls_in(leader.body):
            path = leader_tree.paths.get(id(vars(inner.module)))
            if path is None or inner.is_reference:
                continue  # shared by both modules, or already checked
            if not self._shares(inner.leader, tree.owner(tree.dicts[path][0])):
                return False
        return True

    def _export_body(
        self, call: ModuleCall, node: torch.fx.Node, prepare: Callable[..., Any]
    ) -> None:
        inputs, dynamic_shapes = example_inputs(node)
        self._inside.append(call.module)
        call.reads = call.reads or AttributeReads()
        try:
            with call.reads.restored_in(call.module), recording(call.module, call.reads):
                call.body = prepare(ModuleBody(call), inputs, dynamic_shapes)
        except Exception as error:
            reason, advice = str(error), "externalize a part of it, or leave it out"
            if is_write_inside(error):
                reason, advice = WRITES_INSIDE
            elif isinstance(error, TorchDynamoException):
                reason = "torch cannot trace its cond or loop"
            raise ExternalizationError(
                f"the externalized module {call.path or '(root)'} ({type(call.module).__name__}) "
                f"failed to export by itself: {reason}",
                advice=advice,
            ) from error
        finally:
            self._inside.pop()
        assert call.body is not None
        self.export_bodies(call.body, prepare)

    # ------------------------------------------------------------------ patches
    def _matches(self) -> list[tuple[str, torch.nn.Module, ExternalizeSpec]]:
        specs = as_specs(self.specs)
        regions: dict[type, ExternalizeSpec] = {}
        matches: list[tuple[str, torch.nn.Module, ExternalizeSpec]] = []
        for path, module in self.model.named_modules():
            spec = next((s for s in specs if isinstance(module, s.target_class)), None)
            if spec is None:
                if not is_region(module.forward):
                    continue
                # Marked by the user with nested_compile_region, which torch inlines without strict.
                kind = type(module)
                spec = regions.setdefault(kind, ExternalizeSpec(kind))
            if hasattr(vars(module).get("forward"), EQUIVALENCE_KEY):
                raise ExternalizationError(
                    f"{path or '(root)'} ({type(module).__name__}) is already marked",
                    advice="call restore_externalization before externalizing the model again",
                )
            matches.append((path, module, spec))
        used = {id(spec) for _, _, spec in matches}
        unmatched = [s.target_class.__name__ for s in specs if id(s) not in used]
        if unmatched:
            warnings.warn(
                "externalize_modules: the following target class(es) did not match any "
                f"submodule: {', '.join(unmatched)}",
                UserWarning,
                stacklevel=5,
            )
        return matches

    def _call_region(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function that is marked as a region as a single op."""
        # What a closure holds may be a tensor or a module, whose weights would become constants.
        if function.__closure__:
            return function(*args, **kwargs)
        if function not in self._regions:
            kind = type(function.__name__, (MarkedFunction,), {})
            self._regions[function] = ExternalizeSpec(kind), {}
        spec, calls_by_owner = self._regions[function]
        owners = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.nn.Module)]
        key = tuple(map(id, owners))
        if key not in calls_by_owner:
            region = spec.target_class(function, owners)
            calls_by_owner[key] = self._replacement("", region, spec)
        return calls_by_owner[key](*args, **kwargs)

    def _replacement(
        self, path: str, module: torch.nn.Module, spec: ExternalizeSpec
    ) -> Callable[..., Any]:
        original = unmarked(module.forward)
        signature = inspect.signature(original)
        code = original.__func__ if isinstance(original, MethodType) else original
        modules = ModuleTree(module)
        alike = (SameObject(spec), equivalence_key(original, modules))
        # Rules out most calls before attributes are compared one by one.
        kind = (type(module), *alike, structure(module))
        buffers = buffer_paths(module)

        def run(values: Sequence[torch.Tensor], args: Any, kwargs: Any) -> Any:
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            flat, tree = pytree.tree_flatten(arguments)
            leaves, tensors, numbers = classify(flat)
            call = self._call(
                ModuleCall(
                    module, path, spec, original, tree, leaves, buffers,
                    kind=(kind, equivalence_key(leaves), _layouts((*tensors, *values))),
                )
            )  # fmt: skip
            outputs = OP(tensors, values, numbers, call.tag)
            return _result(call.leader, module, outputs)

        as_one_node = called_by_dynamo(run)

        @functools.wraps(code)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return as_one_node([module.get_buffer(path) for path in buffers], args, kwargs)
            # Libraries may hold this function after the restore, and a body calls its own forward.
            if not self._active or (self._inside and self._inside[-1] is module):
                return original(*args, **kwargs)
            return run(buffers_of(module), args, kwargs)

        vars(forward)[EQUIVALENCE_KEY] = alike
        # Set by functools.wraps: inspect.unwrap would lead past this replacement.
        vars(forward).pop("__wrapped__", None)
        vars(forward)["__signature__"] = signature
        return forward

    def _call(self, new: ModuleCall) -> ModuleCall:
        """Return an earlier equivalent call of this module, or the new call with its leader."""
        _touch_attributes(new)
        earlier_calls = self._known.setdefault(new.kind, [])
        for call in earlier_calls:
            # A call that has not returned yet, or failed, has nothing to share.
            if call.reads is None or call.out_tree is None or call.tree != new.tree:
                continue
            if not call.reads.hold_for(new.module):
                continue
            call.reads.repeat(new.module)
            if call.module is new.module:
                return call
            new.leader = call
            same = (c for c in self.calls.values() if c.leader is call and c.module is new.module)
            earlier = next(same, None)
            if earlier is not None:
                return earlier
            break
        else:
            earlier_calls.append(new)
        self.calls[new.tag] = new
        return new


def _touch_attributes(call: ModuleCall) -> None:
    """Read the attributes of a composite's node, so that enclosing recordings include them."""
    if call.spec.composite_op_name is None or not is_recording():
        return
    names = list(call.spec.composite_attrs or [])
    declaration = call.spec.declaration
    for attribute in declaration.attributes if declaration is not None else ():
        names += [attribute.name, *attribute.aliases]
    for each in names:
        getattr(call.module, each, None)


def _layouts(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Return the properties of tensors that a trace depends on, with sizes as text."""
    return tuple(
        (t.dtype, t.device, *(tuple(map(str, s)) for s in (t.shape, _strides(t)))) for t in tensors
    )


def _strides(tensor: torch.Tensor) -> Sequence[Any]:
    return tensor.stride() if tensor.layout == torch.strided else ()


def _result(leader: ModuleCall, module: torch.nn.Module, outputs: Sequence[torch.Tensor]) -> Any:
    """Return the module's result, and write the new values into the buffers that it mutates."""
    changed = leader.changed or ()
    count = len(outputs) - len(changed)
    places = dict(module.named_buffers()) if changed else {}
    for path, new in zip(changed, outputs[count:], strict=True):
        # torch exports the write as a mutation of the buffer.
        places[path].copy_(new)
    filled = fill(leader.out_leaves, outputs[:count], leader.out_numbers)
    return pytree.tree_unflatten(filled, leader.out_tree)
