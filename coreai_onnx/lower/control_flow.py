"""Higher-order ops: If, Loop and Scan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

if TYPE_CHECKING:
    from coreai_onnx.lower.walker import Walker


def lower(walker: Walker, node: fx.Node) -> Any:
    """Lower a call of a higher-order op."""
    raise NotImplementedError(str(node.target))
