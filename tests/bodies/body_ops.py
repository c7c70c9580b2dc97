"""Which ONNX ops a body is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tests.support.composite_calls import Case, Shape


def body_ops(
    name: str,
    shapes: Sequence[Shape | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    opset: int = 23,
    dtypes: Mapping[int, torch.dtype] | None = None,
) -> list[str]:
    """Return the op types of the body of one call, in order, without constants."""
    case = Case(name, tuple(shapes), dict(attributes or {}), dict(dtypes or {}), label="body")
    (function,) = case.model(dtype, dynamic=True, opset=opset).functions.values()
    return [n.op_type for n in function.all_nodes() if n.op_type != "Constant"]
