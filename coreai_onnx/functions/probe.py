"""A user's module checked numerically against the composite whose name it bears."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from coreai_onnx.composite_ops.declaration import Composite
from coreai_onnx.export.externalize import ModuleCall

_SEED = 20260101
_RELATIVE = 1e-4


def probe_difference(composite: Composite, call: ModuleCall, attributes: Mapping[str, Any]) -> str:
    """Run module and reference on random inputs of the call's shapes.

    Args:
        composite: The standard composite.
        call: The call, whose body holds example shapes.
        attributes: Attributes under the composite's names.

    Returns:
        What differs; empty if nothing does.
    """
    assert call.body is not None
    generator = torch.Generator().manual_seed(_SEED)
    user = [
        n.meta["val"]
        for n, s in zip(
            (n for n in call.body.graph.nodes if n.op == "placeholder"),
            call.body.graph_signature.input_specs,
            strict=True,
        )
        if s.kind.name == "USER_INPUT" and isinstance(n.meta.get("val"), torch.Tensor)
    ]
    tensors = [_random(example, generator) for example in user]
    arguments = call.arguments(tensors, [])
    inputs = [arguments.get(i.name) for i in composite.inputs]
    with torch.no_grad():
        try:
            wanted = composite.reference(*inputs, **attributes)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            return f"the reference does not take its inputs ({error})"
        given = pytree.tree_leaves(type(call.module).forward(call.module, **arguments))[0]
    if given.shape != wanted.shape or given.dtype != wanted.dtype:
        return (
            f"it gives {given.dtype} {tuple(given.shape)}, "
            f"the composite {wanted.dtype} {tuple(wanted.shape)}"
        )
    error = (given.double() - wanted.double()).abs().max().item() if given.numel() else 0.0
    bound = _RELATIVE * max(wanted.abs().max().item(), 1.0) if wanted.numel() else 0.0
    if wanted.dtype in (torch.float16, torch.bfloat16):
        bound *= 100
    return "" if error <= bound else f"its result differs by {error:.3g} on random inputs"


def _random(example: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    sizes = [d.node.hint if isinstance(d, torch.SymInt) else int(d) for d in example.shape]
    if example.dtype.is_floating_point:
        return torch.randn(sizes, generator=generator).to(example.dtype)
    if example.dtype == torch.bool:
        return torch.rand(sizes, generator=generator) > 0.3
    return torch.randint(0, 5, sizes, generator=generator, dtype=example.dtype)
