"""Modules that stay whole: each call of one is a single op in the exported program."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from coreai_onnx.errors import ExternalizationError


@dataclass
class ExternalizeSpec:
    """Which modules become functions of their own.

    Attributes:
        target_class: Every module that is an instance of this class.
        composite_op_name: Name of the composite op; None for a plain function.
        composite_attrs: Attributes of the module that go onto the node.

    Raises:
        ValueError: If ``composite_attrs`` is given without ``composite_op_name``, or the name is
            not an identifier.
    """

    target_class: type
    composite_op_name: str | None = None
    composite_attrs: list[str] | None = None

    def __post_init__(self) -> None:
        """Check that attributes belong to a composite."""
        if self.composite_attrs is not None and self.composite_op_name is None:
            raise ValueError("composite_attrs needs composite_op_name to be set as well")
        name = self.composite_op_name
        if name is not None and not (name.isascii() and name.isidentifier()):
            raise ValueError(
                f"composite_op_name {name!r} is not a name: letters, digits and _ make one "
                "(a dot is for the variants of a composite)"
            )


@dataclass
class ModuleCall:
    """One way a module is called: its arguments apart from the values of the tensors.

    Attributes:
        module: The module.
        path: Its path in the model.
        spec: What it was externalised as.
        tree: Structure of the bound arguments, a dictionary by parameter name.
        leaves: Per flattened argument: ``"tensor"``, ``"number"``, or the constant in a tuple.
        shapes: Dtype and dims of each tensor; a body is exported for these.
        out_tree: Structure of the result, once it ran.
        out_leaves: Like ``leaves``, for the result.
        out_numbers: Symbolic numbers among the result of the latest run.
        body: The module's own exported program, its weights under ``module.``.
    """

    module: torch.nn.Module
    path: str
    spec: ExternalizeSpec
    tree: Any
    leaves: tuple[Any, ...]
    shapes: tuple[Any, ...] = ()
    out_tree: Any = None
    out_leaves: tuple[Any, ...] = ()
    out_numbers: Sequence[Any] = ()
    body: ExportedProgram | None = None

    def arguments(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> dict[str, Any]:
        """Return the bound arguments, by parameter name."""
        filled = _fill(self.leaves, tensors, numbers)
        arguments: dict[str, Any] = pytree.tree_unflatten(filled, self.tree)
        return arguments


_CALLS: dict[str, ModuleCall] = {}
_ORIGINAL: dict[int, Callable[..., Any]] = {}
_library = torch.library.Library("coreai_onnx", "DEF")
_library.define("module_call(Tensor[] tensors, SymInt[] numbers, str tag) -> Tensor[]")


def _run_call(tensors: Sequence[Any], numbers: Sequence[Any], tag: str) -> list[torch.Tensor]:
    """Run the module behind a tag."""
    call = _CALLS[tag]
    result = _invoke(_ORIGINAL[id(call.module)], call.arguments(tensors, numbers))
    flat, call.out_tree = pytree.tree_flatten(result)
    call.out_leaves, outputs, call.out_numbers = _classify(flat)
    aliases = {id(t) for t in tensors}
    return [t.clone() if id(t) in aliases else t for t in outputs]


torch.library.impl(_library, "module_call", "CompositeExplicitAutograd")(_run_call)
torch.library.register_fake("coreai_onnx::module_call", _run_call, lib=_library)


def _classify(flat: Sequence[Any]) -> tuple[tuple[Any, ...], list[Any], list[Any]]:
    """Split flattened leaves into tensors, symbolic numbers and constants."""
    leaves: list[Any] = []
    tensors: list[Any] = []
    numbers: list[Any] = []
    for leaf in flat:
        if isinstance(leaf, torch.Tensor):
            leaves.append("tensor")
            tensors.append(leaf)
        elif isinstance(leaf, torch.SymInt):
            leaves.append("number")
            numbers.append(leaf)
        elif isinstance(leaf, torch.SymFloat | torch.SymBool):
            raise ExternalizationError(
                f"an externalised module takes or returns the symbolic number {leaf}, which has no "
                "form at the border of a function",
                advice="pass it as a tensor, or leave the module out of externalize_modules",
            )
        else:
            leaves.append((leaf,))
    return tuple(leaves), tensors, numbers


def _fill(leaves: Sequence[Any], tensors: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    """Put tensors and numbers back in their places."""
    rest = {"tensor": iter(tensors), "number": iter(numbers)}
    return [next(rest[leaf]) if isinstance(leaf, str) else leaf[0] for leaf in leaves]


def _invoke(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function with arguments bound by name, variadic ones included."""
    bound = inspect.signature(function).bind_partial()
    bound.arguments.update(arguments)
    return function(*bound.args, **bound.kwargs)


@dataclass
class Externalization:
    """The externalised modules of one model, patched while it is exported.

    Args:
        model: The model; restored when the ``with`` block of :meth:`patched` ends.
        specs: What to externalise, or bare classes; the first that matches a module wins.
    """

    model: torch.nn.Module
    specs: Sequence[ExternalizeSpec | type]
    calls: dict[str, ModuleCall] = field(default_factory=dict)
    _counter: Iterator[int] = field(default_factory=itertools.count)
    _inside: list[torch.nn.Module] = field(default_factory=list)
    _tags: dict[int, list[str]] = field(default_factory=dict)

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Make every matching module a single op for as long as the block runs."""
        matches = self._matches()
        restore: list[tuple[torch.nn.Module, Any]] = []
        try:
            for path, module, spec in matches:
                restore.append((module, module.__dict__.get("forward")))
                _ORIGINAL[id(module)] = module.forward
                module.forward = self._replacement(path, module, spec)
            yield
        finally:
            for module, forward in restore:
                if forward is None:
                    module.__dict__.pop("forward", None)
                else:
                    module.forward = forward
                _ORIGINAL.pop(id(module), None)
            for tag in self.calls:
                _CALLS.pop(tag, None)

    def export_bodies(self, program: ExportedProgram, prepare: Callable[..., Any]) -> None:
        """Export each module that is called, nested ones too; to be used inside the block.

        Args:
            program: The exported program of the model.
            prepare: Exports a body from its module, arguments and dynamic shapes.
        """
        for node in program.graph.nodes:
            if node.target is not torch.ops.coreai_onnx.module_call.default:
                continue
            call = self.calls[node.args[2]]
            if call.body is None:
                call.body = self._export_body(call, node, prepare)
                self.export_bodies(call.body, prepare)

    def _export_body(
        self, call: ModuleCall, node: torch.fx.Node, prepare: Callable[..., Any]
    ) -> ExportedProgram:
        from coreai_onnx.export.bodies import Body, example_inputs

        inputs, dynamic_shapes = example_inputs(node)
        self._inside.append(call.module)
        try:
            body = Body(call, _ORIGINAL[id(call.module)])
            result: ExportedProgram = prepare(body, inputs, dynamic_shapes)
        except Exception as error:
            raise ExternalizationError(
                f"the externalised module {call.path} ({type(call.module).__name__}) "
                f"failed to export by itself: {error}",
                advice="externalise a part of it, or leave it out of externalize_modules",
            ) from error
        finally:
            self._inside.pop()
        return result

    def _matches(self) -> list[tuple[str, torch.nn.Module, ExternalizeSpec]]:
        specs = [s if isinstance(s, ExternalizeSpec) else ExternalizeSpec(s) for s in self.specs]
        found: list[tuple[str, torch.nn.Module, ExternalizeSpec]] = []
        for path, module in self.model.named_modules():
            spec = next((s for s in specs if isinstance(module, s.target_class)), None)
            if spec is not None and path:
                found.append((path, module, spec))
        used = {id(spec) for _, _, spec in found}
        unmatched = [s.target_class.__name__ for s in specs if id(s) not in used]
        if unmatched:
            warnings.warn(
                "externalize_modules: the following target class(es) did not match any "
                f"submodule: {', '.join(unmatched)}",
                UserWarning,
                stacklevel=4,
            )
        return found

    def _replacement(
        self, path: str, module: torch.nn.Module, spec: ExternalizeSpec
    ) -> Callable[..., Any]:
        original = _ORIGINAL[id(module)]
        signature = inspect.signature(original)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._inside and self._inside[-1] is module:
                return original(*args, **kwargs)
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            flat, tree = pytree.tree_flatten(arguments)
            leaves, tensors, numbers = _classify(flat)
            shapes = tuple((t.dtype, tuple(str(d) for d in t.shape)) for t in tensors)
            tag = self._tag(ModuleCall(module, path, spec, tree, leaves, shapes))
            outputs = torch.ops.coreai_onnx.module_call(tensors, numbers, tag)
            call = self.calls[tag]
            filled = _fill(call.out_leaves, outputs, call.out_numbers)
            return pytree.tree_unflatten(filled, call.out_tree)

        return forward

    def _tag(self, new: ModuleCall) -> str:
        """Return the tag of a way of calling a module, the same for the same way."""
        known = self._tags.setdefault(id(new.module), [])
        for tag in known:
            call = self.calls[tag]
            same = (call.tree, call.leaves, call.shapes) == (new.tree, new.leaves, new.shapes)
            if same:
                return tag
        tag = f"{new.path}#{next(self._counter)}"
        known.append(tag)
        self.calls[tag] = _CALLS[tag] = new
        return tag
