"""The op that represents a call of an externalized module in an exported program."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary, ref

import torch
from torch.export import ExportedProgram

from coreai_onnx.composites.declaration import computed_composite
from coreai_onnx.errors import ExternalizationError
from coreai_onnx.export.compat.dynamo import without_dynamo
from coreai_onnx.export.compat.torch_names import FakeTensor, free_unbacked_symbols, pytree
from coreai_onnx.export.externalize.attribute_reads import AttributeReads, recording
from coreai_onnx.export.externalize.specs import ExternalizeSpec
from coreai_onnx.export.functionalize.attributes import attributes_restored
from coreai_onnx.export.functionalize.buffers import Substituted


@dataclass(eq=False)
class ModuleCall:
    """A distinct call of a module: its arguments, without the values of tensors.

    Attributes:
        module: The module.
        path: Its path in the model; empty for the model itself.
        spec: The spec that it was externalized by.
        original: Its own forward.
        tree: Structure of the bound arguments, a dictionary by parameter name.
        leaves: Per flattened argument: ``"tensor"``, ``"number"``, or the constant in a tuple.
        buffers: Paths in the module of the buffers that are passed as inputs.
        kind: Equal for calls that may be equivalent: class, structure, arguments, shapes.
        leader: The equivalent call whose results and body this call shares.
        reads: The attributes that the module's forward read when it ran for this call.
        out_tree: Structure of the result; set by the first run.
        out_leaves: Like ``leaves``, for the result.
        out_numbers: Symbolic numbers in the result of the latest run.
        changed: Paths in the module of the buffers that it mutates; their new values are the last
            outputs of the op.
        body: The module's own exported program, its weights under ``module.``.
        results: Layouts of its results, for equivalent calls.
    """

    module: torch.nn.Module
    path: str
    spec: ExternalizeSpec
    original: Callable[..., Any]
    tree: Any
    leaves: tuple[Any, ...]
    buffers: tuple[str, ...] = ()
    kind: Any = None
    tag: str = ""
    leader: ModuleCall = None  # type: ignore[assignment]  # itself, until an equivalent is found
    reads: AttributeReads | None = None
    out_tree: Any = None
    out_leaves: tuple[Any, ...] = ()
    out_numbers: Sequence[Any] = ()
    changed: tuple[str, ...] | None = None
    body: ExportedProgram | None = None
    results: list[_Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Give the call a unique tag, by which the op finds it."""
        self.tag = f"{self.path}#{next(_counter)}"
        self.leader = self
        _CALLS[self.tag] = self

    def arguments(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> dict[str, Any]:
        """Return the bound arguments, by parameter name."""
        filled = fill(self.leaves, tensors, numbers)
        arguments: dict[str, Any] = pytree.tree_unflatten(filled, self.tree)
        return arguments

    @property
    def is_reference(self) -> bool:
        """Whether the module computes the reference of the composite it is externalized as."""
        name = computed_composite(getattr(self.original, "__func__", None))
        return name is not None and name == self.spec.composite_op_name

    def inner_path(self, path: str) -> str:
        """Return the path in the model for a path in the module."""
        return f"{self.path}.{path}" if self.path else path


@dataclass(frozen=True)
class _Result:
    """The results of a call in one fake mode, which equivalent calls share."""

    mode: ref[Any]
    inputs: tuple[Any, ...]
    outputs: tuple[tuple[Any, Any, torch.dtype, torch.device], ...]


_counter: Iterator[int] = itertools.count()
# Weak: the tags in graphs must not keep every model that was converted in memory.
_CALLS: WeakValueDictionary[str, ModuleCall] = WeakValueDictionary()
_library = torch.library.Library("coreai_onnx", "DEF")
_library.define(
    "module_call(Tensor[] tensors, Tensor[] buffers, SymInt[] numbers, str tag) -> Tensor[]"
)
OP = torch.ops.coreai_onnx.module_call.default


def _run_call(
    tensors: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    tag: str,
) -> list[torch.Tensor]:
    """Run the module of a tag; return its results and the new values of the buffers it mutates."""
    call = _CALLS.get(tag)
    if call is None:
        raise ExternalizationError(
            f"the externalized module behind {tag} no longer exists",
            advice="keep the result of subexport_and_restore as long as the program is used",
        )
    inputs, mode = _signature(tensors, buffers, numbers)
    # Only the first of equal layers is traced: a Llama of 60 externalized layers takes 1.4 times as
    # long to convert as one of 2, without externalization 10.7 times (process CPU seconds,
    # docs/internals/performance_log.md).
    results = _known(call.leader, mode, inputs)
    if results is not None:
        return results
    outputs = _run(call.leader, call, tensors, buffers, numbers)
    if mode is not None:
        _keep_inside(call, mode, outputs)
        _remember(call.leader, mode, inputs, outputs)
    return outputs


def _run(
    leader: ModuleCall,
    call: ModuleCall,
    tensors: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    numbers: Sequence[Any],
) -> list[torch.Tensor]:
    places = Substituted(call.module, buffers)
    with places.active(), attributes_restored(call.module):
        # The reads of the first run are what later calls are compared by.
        first = leader.reads is None
        leader.reads = leader.reads or AttributeReads()
        with recording(call.module, leader.reads) if first else nullcontext(), without_dynamo():
            result = invoke(call.original, call.arguments(tensors, numbers))
    flat, leader.out_tree = pytree.tree_flatten(result)
    leader.out_leaves, outputs, leader.out_numbers = classify(flat)
    changed = places.changed()
    if leader.changed is None:
        leader.changed = tuple(changed)
    unexpected = changed.keys() - set(leader.changed)
    if unexpected:
        raise ExternalizationError(
            f"the externalized module {call.path} changes {', '.join(sorted(unexpected))} "
            "in place, but not in its first run",
            advice="leave it out of externalize_modules",
        )
    # torch requires that a custom op returns neither its inputs nor one tensor twice.
    return unshared([*outputs, *places.values(leader.changed)], tensors)


def unshared(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs with clones for tensors that are also an input or another output."""
    taken = {id(t) for t in inputs}
    results: list[torch.Tensor] = []
    for tensor in outputs:
        results.append(tensor.clone() if id(tensor) in taken else tensor)
        taken.add(id(tensor))
    return results


torch.library.impl(_library, "module_call", "CompositeExplicitAutograd")(_run_call)
torch.library.register_fake("coreai_onnx::module_call", _run_call, lib=_library)


# ---------------------------------------------------------------------- results of equivalent calls
def _keep_inside(call: ModuleCall, mode: Any, outputs: Sequence[torch.Tensor]) -> None:
    """Leave numbers that a module reads from tensors to its body, unless they are sizes of results.

    torch expects every such number in the results of an op.

    Raises:
        ExternalizationError: The module returns one.
    """
    fresh = mode.shape_env.pending_fresh_unbacked_symbols if mode.shape_env else []
    if not fresh:
        return
    sizes = free_unbacked_symbols(outputs)
    inner = {symbol for symbol in fresh if symbol not in sizes}
    if inner & free_unbacked_symbols(call.leader.out_numbers):
        raise ExternalizationError(
            f"the externalized module {call.path or '(root)'} returns a number that it reads from "
            "a tensor, which cannot be an output of a function",
            advice="return the tensor, or leave the module out of externalize_modules",
        )
    fresh[:] = [symbol for symbol in fresh if symbol in sizes]  # in place: the list is torch's


def _signature(
    tensors: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor], numbers: Sequence[Any]
) -> tuple[tuple[Any, ...], Any]:
    """Return a key of the results' shapes, and the fake mode; None unless all tensors are fake."""
    fake = [t for t in (*tensors, *buffers) if isinstance(t, FakeTensor)]
    # With real tensors, the values matter as well, not only the layouts.
    if not fake or len(fake) != len(tensors) + len(buffers):
        return (), None
    if any(t.layout != torch.strided for t in fake):
        return (), None
    parts = [(t.dtype, _sizes(t.shape), _sizes(t.stride())) for t in fake]
    return (*parts, _sizes(numbers)), fake[0].fake_mode


def _sizes(sizes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(s.node.expr if isinstance(s, torch.SymInt) else s for s in sizes)


def _known(call: ModuleCall, mode: Any, inputs: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """Return new tensors with the layouts of an earlier run with the same inputs, if any."""
    if mode is None:
        return None
    for result in call.results:
        if result.mode() is mode and result.inputs == inputs:
            return [
                torch.empty_strided(size, stride, dtype=dtype, device=device)
                for size, stride, dtype, device in result.outputs
            ]
    return None


def _remember(
    call: ModuleCall, mode: Any, inputs: tuple[Any, ...], outputs: Sequence[torch.Tensor]
) -> None:
    """Store the layouts of results, unless they depend on the data of the inputs."""
    if any(t.layout != torch.strided for t in outputs) or any(map(_is_data, outputs)):
        return
    # Each call needs new symbols for sizes that depend on data.
    if any(_is_unbacked(n) for n in call.out_numbers):
        return
    layouts = tuple((t.size(), t.stride(), t.dtype, t.device) for t in outputs)
    # Weak, since the mode holds all symbols and guards of its export.
    call.results.append(_Result(ref(mode), inputs, layouts))


def _is_data(tensor: torch.Tensor) -> bool:
    return any(_is_unbacked(s) for s in (*tensor.shape, *tensor.stride()))


def _is_unbacked(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and not size.node.has_hint()


# ---------------------------------------------------------------------- arguments
def classify(flat: Sequence[Any]) -> tuple[tuple[Any, ...], list[Any], list[Any]]:
    """Split flattened leaves into tensors, symbolic numbers and constants.

    Raises:
        ExternalizationError: For a symbolic float or bool.
    """
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
                f"an externalized module takes or returns the symbolic number {leaf}, which "
                "cannot be an input or output of a function",
                advice="pass it as a tensor, or leave the module out of externalize_modules",
            )
        else:
            leaves.append((leaf,))  # a constant may be the string "tensor" itself
    return tuple(leaves), tensors, numbers


def fill(leaves: Sequence[Any], tensors: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    """Return the flattened leaves with tensors and numbers filled in."""
    rest = {"tensor": iter(tensors), "number": iter(numbers)}
    return [next(rest[leaf]) if isinstance(leaf, str) else leaf[0] for leaf in leaves]


def invoke(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function with arguments bound by name, variadic ones included."""
    # Filled by name: *args is a single entry here, which a call would have to unpack.
    bound = inspect.signature(function).bind_partial()
    bound.arguments.update(arguments)
    return function(*bound.args, **bound.kwargs)
