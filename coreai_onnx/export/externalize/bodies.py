"""The body of an externalized module, exported separately with the shapes of a call site."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import Dim, ExportedProgram

from coreai_onnx.export.compat.experts import experts_as_gather_mm
from coreai_onnx.export.compat.linear_attention import gated_delta_layers_as_ops
from coreai_onnx.export.compat.recurrent import recurrent_layers_as_ops
from coreai_onnx.export.compat.sizes import (
    multiples_compared,
    offsets_of_biases_known,
    sizes_as_tensors,
)
from coreai_onnx.export.compat.state_space import state_space_layers_as_ops
from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.export.externalize.module_call import ModuleCall, classify, invoke
from coreai_onnx.export.functionalize.buffers import written_in_place
from coreai_onnx.export.functionalize.decompositions import functional
from coreai_onnx.export.torch_export import TorchExport, size_oblivious


class ModuleBody(torch.nn.Module):
    """Calls a module's own forward on flat tensors, without its hooks, which the caller runs."""

    def __init__(self, call: ModuleCall) -> None:
        """Store the module, so that its weights are exported as ``module.<name>``."""
        super().__init__()
        self.module = call.module
        self._call = [call]

    def forward(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> Any:
        """Run the module; returns the tensors of its result, in flattened order."""
        call = self._call[0]
        with written_in_place(self.module):
            result = invoke(call.original, call.arguments(tensors, numbers))
        flat, call.out_tree = pytree.tree_flatten(result)
        call.out_leaves, outputs, _ = classify(flat)
        return outputs


def trust(_composite: str) -> bool:
    """Trust every replacement of a loop by a composite."""
    return True


@contextlib.contextmanager
def known_loops(model: torch.nn.Module, trusts: Callable[[str], bool] = trust) -> Iterator[None]:
    """While active, known loops that torch would unroll are exported as one op each.

    Args:
        model: The model that is exported.
        trusts: Whether a loop may become the composite of this name.
    """
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(recurrent_layers_as_ops())
        contexts.enter_context(multiples_compared())
        contexts.enter_context(sizes_as_tensors())
        contexts.enter_context(offsets_of_biases_known(model))
        contexts.enter_context(state_space_layers_as_ops(model))
        if trusts("gated_delta_update"):
            contexts.enter_context(gated_delta_layers_as_ops(model))
        if trusts("gather_mm"):
            contexts.enter_context(experts_as_gather_mm())
        yield


class BodyExport:
    """Exports the bodies of modules separately.

    Args:
        decompositions: A decomposition table for them; with an empty one they are not decomposed.
        trusts: As for :func:`known_loops`.
    """

    def __init__(
        self, decompositions: Mapping[Any, Any], trusts: Callable[[str], bool] = trust
    ) -> None:
        """Store the table."""
        self._decompositions, self._trusts = dict(decompositions), trusts

    def __call__(self, body: ModuleBody, inputs: Any, dynamic_shapes: Any) -> ExportedProgram:
        """Return the exported program of a body; functional, its weights under ``module.``."""
        # The export of the calling program has already made all conditions on sizes.
        with torch.no_grad(), known_loops(body, self._trusts), size_oblivious():
            # Few calls of a body are equal, and an entry costs more than a call.
            export = TorchExport(inputs, dynamic_shapes=dynamic_shapes, deferred=True, cached=False)
            program = export(body)
            if self._decompositions:
                program = program.run_decompositions(self._decompositions)
            return functional(program)


def example_inputs(node: fx.Node) -> tuple[tuple[Any, ...], Any]:
    """Return concrete inputs with the shapes of a call site, and their dynamic dims.

    Args:
        node: A ``module_call`` node.

    Returns:
        ``(tensors, numbers)`` as for :class:`ModuleBody`, and the matching ``dynamic_shapes``.
    """
    tensors, shapes = [], []
    arguments: Any = node.args[0]
    for argument in arguments:
        fake = argument.meta["val"]
        sizes = [_hint(d) for d in fake.shape]
        tensors.append(_example(sizes, fake.dtype))
        shapes.append(
            {i: Dim.AUTO for i, d in enumerate(fake.shape) if isinstance(d, torch.SymInt)}
        )
    symbolic: Any = node.args[2]
    numbers = [_hint(_value(n)) for n in symbolic]
    return (tensors, numbers), (shapes, [Dim.DYNAMIC] * len(numbers))


def _example(sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        # torch draws no random numbers in float8.
        return torch.randn(sizes, dtype=torch.float32).to(dtype)
    # Integers may be indices: 0 is valid in every table.
    return torch.zeros(sizes, dtype=dtype)


def _value(x: Any) -> Any:
    return x.meta["val"] if isinstance(x, fx.Node) else x


def _hint(x: Any) -> int:
    return int(x.node.hint if isinstance(x, torch.SymInt) else x)
