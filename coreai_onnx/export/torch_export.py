"""``torch.export.export`` with its arguments, so that it can be retried with other options."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.overrides import TorchFunctionMode

from coreai_onnx.errors import DynamicShapesError
from coreai_onnx.export.compat.finite_checks import AssumesFinite, Repairs
from coreai_onnx.export.compat.torch_names import symbolic_shapes_config, tracing_config

_READS_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]  # a property written in C


@dataclass(frozen=True)
class TorchExport:
    """Exports a module by ``torch.export.export``.

    Attributes:
        args: Example positional arguments.
        kwargs: Example keyword arguments.
        dynamic_shapes: As for ``torch.export.export``.
        strict: As for ``torch.export.export``.
        deferred: ``prefer_deferred_runtime_asserts_over_guards`` of ``torch.export.export``.
        oblivious: Whether torch does not specialize sizes of 0 and 1
            (``backed_size_oblivious``).
        detached: Whether ``tensor.data`` is read as ``tensor.detach()``.
        finite: How branches on whether values are finite are exported; None to follow them.
        cached: Whether torch keeps the shapes that an operator returned for the next call with
            the same inputs.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None
    strict: bool = False
    deferred: bool = False
    oblivious: bool = False
    detached: bool = False
    finite: type[AssumesFinite | Repairs] | None = None
    cached: bool = True

    def __call__(self, model: torch.nn.Module) -> ExportedProgram:
        """Export a module."""
        with contextlib.ExitStack() as contexts:
            contexts.enter_context(size_oblivious(when=self.oblivious))
            if self.detached:
                contexts.enter_context(_DetachedData())
            if self.finite is not None:
                contexts.enter_context(self.finite())
            if not self.cached:
                contexts.enter_context(tracing_config.patch(fake_tensor_cache_enabled=False))
            return torch.export.export(
                model,
                self.args,
                dict(self.kwargs or {}),
                dynamic_shapes=self.dynamic_shapes,
                strict=self.strict,
                prefer_deferred_runtime_asserts_over_guards=self.deferred,
            )


def size_oblivious(*, when: bool = True) -> contextlib.AbstractContextManager[Any]:
    """While active, torch traces one graph for all sizes, without branches for 0 and 1.

    Otherwise an operator may test whether a size is 1, and torch uses the size of the example.

    Args:
        when: Whether to do so at all.
    """
    if not when:
        return contextlib.nullcontext()
    patch: Any = symbolic_shapes_config.patch  # type: ignore[attr-defined]
    return patch(backed_size_oblivious=True)  # type: ignore[no-any-return]


class _DetachedData(TorchFunctionMode):
    """While active, ``tensor.data`` is ``tensor.detach()``, which torch.export can follow."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        # Not `is`: each access to the property makes a new wrapper of its getter.
        if func == _READS_DATA:
            return args[0].detach()
        return func(*args, **(kwargs or {}))


def with_named_dims(dynamic_shapes: Any) -> Any:
    """Return ``dynamic_shapes`` with a ``Dim`` instead of each string.

        {"ids": {0: "batch", 1: "seq"}}   becomes   {"ids": {0: Dim("batch"), 1: Dim("seq")}}

    A name is the same ``Dim`` everywhere; a ``Dim`` of that name that the user gives is used.

    Args:
        dynamic_shapes: As for ``torch.export.export``, with strings allowed as dims.

    Raises:
        DynamicShapesError: If a string is not a Python identifier.
    """
    dims = {x.__name__: x for x in dims_in(dynamic_shapes) if isinstance(x, Dim)}
    return _named(dynamic_shapes, dims)


def dims_in(spec: Any) -> list[Any]:
    """Return the dims in ``dynamic_shapes``, in order; None for a static tensor or axis."""
    if isinstance(spec, Mapping | list | tuple):
        inner = spec.values() if isinstance(spec, Mapping) else spec
        return [leaf for one in inner for leaf in dims_in(one)]
    return [spec]


def _named(spec: Any, dims: dict[str, Any]) -> Any:
    if isinstance(spec, str):
        if not spec.isidentifier():
            raise DynamicShapesError(
                f"dynamic_shapes: {spec!r} cannot name a dim; a name is a Python identifier"
            )
        return dims.setdefault(spec, Dim(spec))
    if isinstance(spec, Mapping):
        return {key: _named(value, dims) for key, value in spec.items()}
    if isinstance(spec, list | tuple):
        values = [_named(value, dims) for value in spec]
        # Named tuples take their fields one by one.
        return type(spec)(*values) if hasattr(spec, "_fields") else type(spec)(values)
    return spec
