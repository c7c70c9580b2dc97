"""Lowers higher-order ops to If, Loop and Scan; inlines wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import fx

from coreai_onnx.lower.control_flow.attention import flex_attention
from coreai_onnx.lower.control_flow.calls import (
    auto_functionalized,
    auto_functionalized_v2,
    out_dtype,
    with_effects,
)
from coreai_onnx.lower.control_flow.cond import cond
from coreai_onnx.lower.control_flow.inline import INLINED, inline, tracepoint, with_autocast
from coreai_onnx.lower.control_flow.scan import associative_scan, map_, scan
from coreai_onnx.lower.control_flow.while_loop import while_loop

if TYPE_CHECKING:
    from coreai_onnx.lower.walker import Walker

Rule = Callable[["Walker", fx.Node], Any]

RULES: dict[str, Rule] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_impl": map_,
    "associative_scan": associative_scan,
    "flex_attention": flex_attention,
    "with_effects": with_effects,
    "auto_functionalized": auto_functionalized,
    "auto_functionalized_v2": auto_functionalized_v2,
    "out_dtype": out_dtype,
    "wrap_with_autocast": with_autocast,
    "_export_tracepoint": tracepoint,
    **dict.fromkeys(INLINED, inline),
}
"""The lowering of each higher-order op."""


def rule_for(name: str) -> Rule | None:
    """Return the lowering of a higher-order op, or None."""
    return RULES.get(name)


__all__ = ["RULES", "Rule", "rule_for"]
