"""Buffers of a module that runs as a single op: they are inputs, and changed ones are outputs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from coreai_onnx.errors import ExportError, ExternalizationError
from coreai_onnx.export.compat.torch_names import TorchDispatchMode, pytree
from coreai_onnx.export.functionalize.attributes import same_sizes, warn_of_dropped
from coreai_onnx.model.dependencies import FUNCTIONALIZED_WRITE, TRACED_WRITE

aten = torch.ops.aten
_NORMS_THAT_WRITE = frozenset(
    {
        aten.batch_norm.default,
        aten.cudnn_batch_norm.default,
        aten.instance_norm.default,
        aten.native_batch_norm.default,
    }
)
"""Ops that mutate their arguments 3 and 4 if argument 5 is true, which their schemas omit."""

WRITES_INSIDE = (
    (
        "a branch of torch.cond or the body of a loop changes a tensor from outside in place, "
        "which torch.export does not follow"
    ),
    (
        "return the new value from the branch, and assign it after: value, new = torch.cond(...); "
        "self.buffer.copy_(new)"
    ),
)
"""The reason and the advice for mutations that torch.export refuses."""


def is_write_inside(error: BaseException) -> bool:
    """Whether torch failed because a branch or a loop body changes a tensor from outside."""
    is_ours = isinstance(error, ExportError) and WRITES_INSIDE[0] in error.args[0]
    return is_ours or TRACED_WRITE.is_in(error) or FUNCTIONALIZED_WRITE.is_in(error)


def buffer_paths(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the path of every buffer in a module; one path for a buffer with several names."""
    return tuple(name for name, _ in module.named_buffers())


def buffers_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the present buffers of a module, in the order of :func:`buffer_paths`."""
    return [tensor for _, tensor in module.named_buffers()]


@contextmanager
def written_in_place(module: torch.nn.Module) -> Iterator[list[str]]:
    """While active, turn assignments to buffers into in-place writes, as an export requires.

    A buffer that is replaced by a tensor of another shape keeps its value.

    Yields:
        The paths of such buffers; empty until the block is left.
    """
    holders = [  # a traced module keeps its buffers in C++
        (path, vars(inner).get("_buffers", {})) for path, inner in module.named_modules()
    ]
    before = [dict(registry) for _, registry in holders]
    dropped: list[str] = []
    yield dropped
    for (path, registry), old in zip(holders, before, strict=True):
        for name, tensor in old.items():
            new = registry[name]
            if new is tensor or tensor is None or new is None:
                continue
            if same_sizes(new, tensor):
                tensor.copy_(new)
            else:
                dropped.append(f"{path}.{name}".lstrip("."))
            registry[name] = tensor


@contextmanager
def assignments_kept(model: torch.nn.Module) -> Iterator[None]:
    """While active, ``self.buffer = new`` in the forward of a model is exported as a mutation.

    torch.export keeps in-place mutations of buffers, but drops tensors that replace them.

    Warns:
        DroppedStateWarning: A buffer is replaced by a tensor of another shape.
    """
    inside = contextlib.ExitStack()
    dropped: list[list[str]] = []

    def enter(*_: Any) -> None:
        dropped.append(inside.enter_context(written_in_place(model)))

    def leave(*_: Any) -> None:
        inside.close()

    with contextlib.ExitStack() as hooks:
        if any(True for _ in model.buffers()):
            hooks.callback(model.register_forward_pre_hook(enter).remove)
            hooks.callback(model.register_forward_hook(leave).remove)
        yield
    if any(dropped):
        warn_of_dropped(itertools.chain.from_iterable(dropped))


class Substituted:
    """The buffers of a module, temporarily replaced by other tensors.

    Args:
        module: The module.
        replacements: The replacements, in the order of :func:`buffer_paths`.
    """

    def __init__(self, module: torch.nn.Module, replacements: Sequence[torch.Tensor]) -> None:
        """Find the registry entries of the buffers; a buffer may have several."""
        entries = {id(tensor): (path, i) for i, (path, tensor) in enumerate(module.named_buffers())}
        self._places: list[tuple[dict[str, Any], str, int]] = []
        self._paths = [path for path, _ in entries.values()]
        for inner in module.modules():
            registry: dict[str, Any] = vars(inner)["_buffers"]
            for name, tensor in registry.items():
                if tensor is not None:
                    self._places.append((registry, name, entries[id(tensor)][1]))
        # The module may write to its buffers, and an op must not change its inputs.
        self._replacements = [x.clone() for x in replacements]
        self._after: dict[int, Any] = {}
        self._writes = _Writes(self._replacements)

    @contextmanager
    def active(self) -> Iterator[None]:
        """While active, the module has the given tensors as its buffers."""
        before = [registry[name] for registry, name, _ in self._places]
        for registry, name, i in self._places:
            registry[name] = self._replacements[i]
        try:
            with self._writes:
                yield
            self._after = {i: registry.get(name) for registry, name, i in self._places}
        finally:
            for (registry, name, _), tensor in zip(self._places, before, strict=True):
                registry[name] = tensor

    def changed(self) -> dict[str, torch.Tensor]:
        """Return the new value of every buffer that was written or replaced, by path.

        Raises:
            ExternalizationError: If a buffer was replaced by a tensor of another shape or dtype.
        """
        values: dict[str, torch.Tensor] = {}
        for i, (path, replacement) in enumerate(zip(self._paths, self._replacements, strict=True)):
            now = self._after[i]
            # Written in place or assigned: either makes a new value.
            if now is replacement and _address(replacement) not in self._writes.written:
                continue
            if not isinstance(now, torch.Tensor) or (now.dtype, now.shape) != (
                replacement.dtype,
                replacement.shape,
            ):
                raise ExternalizationError(
                    f"an externalized module changes the shape or dtype of its buffer {path}",
                    advice="a state has one shape and dtype; leave the module out of "
                    "externalize_modules",
                )
            values[path] = now
        return values

    def values(self, paths: Sequence[str]) -> list[torch.Tensor]:
        """Return the present values of the buffers at the given paths."""
        index = {path: i for i, path in enumerate(self._paths)}
        return [self._after[index[path]] for path in paths]


class _Writes(TorchDispatchMode):
    """Records which of the given tensors are written to, also through views.

    Args:
        watched: The tensors; no other tensors share their memory.
    """

    # Without it, torch.cond and loops raise an error while the mode is active.
    supports_higher_order_operators = True

    def __init__(self, watched: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._watched = {_address(x) for x in watched}
        self.written: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for argument in _written(func, args, kwargs or {}):
            for tensor in pytree.tree_leaves(argument):
                if isinstance(tensor, torch.Tensor):
                    address = _address(tensor)
                    if address in self._watched:
                        self.written.add(address)
        return result

    def __enter__(self) -> Any:
        # A mode costs time for every op, and without buffers there is nothing to find.
        return super().__enter__() if self._watched else self

    def __exit__(self, *exception: object) -> None:
        if self._watched:
            super().__exit__(*exception)


def _address(tensor: torch.Tensor) -> int:
    """Return a key that views of one storage share; fake tensors have no data pointer."""
    return int(StorageWeakRef(tensor.untyped_storage()).cdata)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an op writes to."""
    if func in _NORMS_THAT_WRITE:
        return list(args[3:5]) if args[5] else []
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    arguments = {a.name: x for a, x in zip(schema.arguments, args, strict=False)} | dict(kwargs)
    declared = {a.name: a.alias_info for a in schema.arguments}
    return [
        x for name, x in arguments.items() if (info := declared[name]) is not None and info.is_write
    ]
