"""Calls of composites from torch code: one op that is not decomposed in an exported program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

_LIBRARY = torch.library.Library("coreai", "FRAGMENT")
_LIBRARY.define("composite(Tensor?[] inputs, str name, str attributes) -> Tensor")


def call(name: str, *inputs: torch.Tensor | None, **attributes: Any) -> torch.Tensor:
    """Call a composite with one output; in an exported program it is one node.

    Args:
        name: The composite.
        *inputs: Its inputs by position, None for absent ones.
        **attributes: Its attributes: numbers, strings and lists of them.

    Returns:
        The result of the composite's reference.
    """
    text = json.dumps(attributes, sort_keys=True)
    result: torch.Tensor = torch.ops.coreai.composite(list(inputs), name, text)
    return result


def _compute(inputs: Sequence[torch.Tensor | None], name: str, attributes: str) -> torch.Tensor:
    from coreai_onnx.composites import COMPOSITES  # the package imports this file

    result: torch.Tensor = COMPOSITES[name].reference(*inputs, **json.loads(attributes))
    return result.contiguous()


def _layout(inputs: Sequence[torch.Tensor | None], name: str, attributes: str) -> torch.Tensor:
    """Return an empty tensor with the result's shape, without arithmetic on sizes in between."""
    from coreai_onnx.composites import COMPOSITES  # the package imports this file

    first = inputs[0]
    assert first is not None
    shapes = [None if x is None else x.shape for x in inputs]
    (shape,) = COMPOSITES[name].output_shapes(shapes)
    return _compute(inputs, name, attributes) if shape is None else first.new_empty(shape)


torch.library.impl(_LIBRARY, "composite", "CompositeExplicitAutograd")(_compute)
torch.library.register_fake("coreai::composite", _layout, lib=_LIBRARY)
